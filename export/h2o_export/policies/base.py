"""The exporter's and h2o-compare's view of a prefill policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from h2o_export.attention_graphs import AttentionStep
from h2o_export.reference.streamed_model import Attention
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.policies.prefill import Full, PrefillPolicy

ROWS = 512  # of the caches, where graphs are compared
Policy = TypeVar("Policy", bound=PrefillPolicy[Any])


def exact() -> PrefillPolicy[Any]:
    """The policy that all others approximate."""
    return Full()


@dataclass(frozen=True)
class Verdict:
    """A reference's statement besides its numbers."""

    sound: bool = True
    note: str = ""


@dataclass(frozen=True)
class Reference:
    """A policy computed independently of the runtime, inside transformers' layers. Serves one prompt.

    name       in tables
    attention  takes the place of transformers' own attention; None leaves that, which sees everything
    verdict    asked when all layers have run
    """

    name: str
    attention: Attention | None = None
    verdict: Callable[[], Verdict] = Verdict


# From the layers under policies and the memory sets, int32 [layers, boundaries, Hs, M], of the compared
# run: a reference may adopt them where the rule allows several choices.
MakeReference = Callable[[ModelSpec, NDArray[np.int32]], Reference]


class LayerAttention(ABC):
    """Attention for transformers' layers: a layer's whole prompt at once."""

    def __call__(
        self,
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Any,
        scaling: float,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        """query [1, Hq, N, d]; key, value [1, Hkv, N, d] → [1, N, Hq, d]."""
        out = self.attend(module.layer_idx, query[0] * scaling, key[0], value[0], softcap, s_aux)
        return out.transpose(0, 1).unsqueeze(0), None

    @abstractmethod
    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, softcap: float | None, sinks: Tensor | None
    ) -> Tensor:
        """q [Hq, N, d], times the scale; k, v [Hkv, N, d]; sinks [Hq] → [Hq, N, d]."""


class PolicyEntry(Generic[Policy]):
    """One policy class. The defaults here serve policies without their own entry.

    policy  the class; subclasses without an entry of their own share it
    """

    policy: ClassVar[type[PrefillPolicy[Any]]]

    def steps(self, policy: Policy) -> tuple[AttentionStep, ...]:
        """The attention graphs that it needs besides decode's."""
        return ()

    def rows(self, policy: Policy) -> int:
        """Rows of the caches: few, but enough to show errors of its graphs."""
        return ROWS

    def variants(self, policy: Policy) -> tuple[PrefillPolicy[Any], ...]:
        """The policies to compare for this one: the exact one first."""
        return exact(), policy

    def reference(self, policy: Policy) -> MakeReference | None:
        """How to make the independent computation of the policy; None if there is none."""
        return None
