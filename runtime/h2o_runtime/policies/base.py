"""What a prefill policy is given and what it must do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from h2o_runtime.attention.base import AttentionProvider
from h2o_runtime.cache import KVCache
from h2o_runtime.devices import Device, Flow, Tensor
from h2o_runtime.manifest import ModelSpec
from h2o_runtime.reuse import Prefix
from h2o_runtime.timings import Stopwatch


@dataclass(frozen=True)
class LayerCall:
    """One layer's attention over the n new tokens of a prompt.

    q, o        [n, Hq, d]: queries in, attention output out
    cache       holds the n tokens' keys and values already, at rows past … past + n - 1 of `layer`
    prefix      what the `past` cached tokens are
    flow        told which rows are about to be read, and which are final
    checkpoint  called between steps with the number of rows done; raises Cancelled when asked to stop
    """

    layer: int
    q: Tensor
    o: Tensor
    cache: KVCache
    past: int
    prefix: Prefix
    provider: AttentionProvider
    timer: Stopwatch
    flow: Flow
    checkpoint: Callable[[int], None]

    @property
    def k_cache(self) -> Tensor:
        return self.cache.keys[self.layer]

    @property
    def v_cache(self) -> Tensor:
        return self.cache.values[self.layer]

    def dense_rows(self, start: int, stop: int) -> None:
        """Rows start … stop - 1 attend to everything before them, as decode does."""
        self.provider.cached_attention(
            self.q[start:stop], self.k_cache, self.v_cache, self.past + stop, self.o[start:stop]
        )


class PrefillPolicy(Protocol):
    """Fields are the configuration; `attend` is the algorithm; `state` is what it remembers of a request."""

    def new_state(self, model: ModelSpec, capacity: int, device: Device) -> Any:
        """Allocate everything that `attend` needs for a cache of `capacity` tokens."""

    def attend(self, call: LayerCall, state: Any) -> None:
        """Fill `call.o`. Layers come in order, each with all of the prompt's new tokens."""
