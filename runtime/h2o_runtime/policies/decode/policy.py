"""The interface of a decode policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from h2o_runtime.attention.provider import AttentionProvider
from h2o_runtime.caches.cache import Rows
from h2o_runtime.components.options import NamedConfiguration
from h2o_runtime.devices import Device, Tensor
from h2o_runtime.kv import KV
from h2o_runtime.model_spec import ModelSpec

State = TypeVar("State")


@dataclass(frozen=True)
class StepCall:
    """One layer's attention of one token, the last that `kv` holds.

    q, o   [1, Hq, d]: query in, attention output out
    new    the token's own "k" and "v" [1, Hkv, d], where `kv` does not hold them yet: of policies that append
    fetch  called with pages and their rows, as `LayerStore.fetch`, before they are read
    """

    layer: int
    q: Tensor
    o: Tensor
    kv: KV
    provider: AttentionProvider
    new: dict[str, Tensor] | None = None
    fetch: Callable[[Tensor, int], None] = lambda pages, page_rows: None


@dataclass(frozen=True)
class DecodePolicy(NamedConfiguration, ABC, Generic[State]):
    """Fields are the configuration, each an `option`; a State is what it remembers of a session.

    exact  whether a token sees everything before it
    shared_values whether its operators take values that are a part of keys
    mixed_rows whether layers may differ in what their caches keep of a token
    joined_by_sinks  whether its operators are those that sinks join: see `h2o_runtime.attention.sinks`
    full_attention_only  whether a step is attention to all cached rows, and nothing else
    appends whether `attend` brings the token's row into the cache where it is given: as `step_attention` does
    slow_on_gpu  what a GPU loses with it, for a warning
    only_on_cpu  why a GPU refuses it, for messages; empty if it does not
    """

    exact: ClassVar[bool] = False
    shared_values: ClassVar[bool] = False
    mixed_rows: ClassVar[bool] = False
    joined_by_sinks: ClassVar[bool] = False
    full_attention_only: ClassVar[bool] = False
    appends: ClassVar[bool] = False
    slow_on_gpu: ClassVar[str] = ""
    only_on_cpu: ClassVar[str] = ""

    def new_state(self, model: ModelSpec, capacity: int, device: Device) -> State | None:
        """Allocate everything that `attend` needs for a cache of `capacity` rows."""
        return None

    def state_bytes(self, model: ModelSpec, context: int) -> int:
        """Bytes of `new_state` for `context` tokens."""
        return 0

    def step_bytes(self, model: ModelSpec, context: int) -> int:
        """The least that a token reads of cache and state, in all layers, in bytes: the whole cache if it
        sees all.
        """
        return context * model.read_bytes

    def reads_in_pages(self, layer: int) -> bool:
        """Whether a step reads only pages of the layer's earlier rows, and requests them first."""
        return False

    def observe(self, layer: int, kv: KV, rows: Rows, provider: AttentionProvider, state: Any) -> None:
        """`rows` of a layer were written, by a prefill or a step, and `kv` ends with them.

        `provider` executes operators on them. A GPU records a step's calls, as for `attend`.
        """

    @abstractmethod
    def attend(self, call: StepCall, state: Any) -> None:
        """Fill `call.o`. A GPU records the calls once: shapes and addresses must not depend on the length."""
