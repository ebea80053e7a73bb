"""What exporter and comparison know of a prefill policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from h2o_export.attention_graphs import AttentionStep
from h2o_export.validation.reference import Attention
from h2o_runtime.config.prefill import PrefillConfig
from h2o_runtime.policies.prefill import PrefillPolicy

ROWS = 512  # of the caches, where graphs are compared
Policy = TypeVar("Policy", bound=PrefillPolicy[Any])


def exact() -> PrefillConfig:
    """What every policy approximates."""
    return PrefillConfig(policy="full")


@dataclass(frozen=True)
class Verdict:
    """What a reference says besides its numbers."""

    sound: bool = True
    note: str = ""


@dataclass(frozen=True)
class Reference:
    """A policy computed by another route than the runtime's, inside transformers' layers. Serves one prompt.

    name       in tables
    attention  takes the place of transformers' own attention; None leaves that, which sees everything
    verdict    asked when all layers have run
    """

    name: str
    attention: Attention | None = None
    verdict: Callable[[], Verdict] = Verdict


# From the number of key/value heads and the memory sets, int32 [layers, boundaries, Hs, M], of the run that is
# compared: a reference may adopt them where the rule leaves a choice.
MakeReference = Callable[[int, NDArray[np.int32]], Reference]


class PolicyEntry(Generic[Policy]):
    """One policy class. What stands here serves a policy that has no entry of its own.

    policy  the class; subclasses without an entry of their own share it
    """

    policy: ClassVar[type[PrefillPolicy[Any]]]

    def steps(self, policy: Policy) -> tuple[AttentionStep, ...]:
        """The attention graphs that it needs besides decode's."""
        return ()

    def rows(self, policy: Policy) -> int:
        """Rows of the caches, as few as tell the errors of its graphs."""
        return ROWS

    def describe(self, policy: Policy) -> str:
        """A short name for tables."""
        return policy.name

    def variants(self, config: PrefillConfig) -> tuple[PrefillConfig, ...]:
        """What is compared where this configuration is asked for: the exact policy first."""
        return exact(), config

    def reference(self, policy: Policy) -> MakeReference | None:
        """How to make the independent computation of the policy; None where there is none."""
        return None
