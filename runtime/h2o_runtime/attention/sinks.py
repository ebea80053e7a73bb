"""Attention sinks: a learned score of each query head that takes part in the softmax and has no key.

A sink enters the softmax of a row once. Every row passes through one operator that sees its own key: there the sink
joins its state, and what other phases add to that state is fused as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.attention.provider import AttentionProvider, AttentionShape, append_rows
from h2o_runtime.devices import Tensor
from h2o_runtime.kv import KV
from h2o_runtime.operator_spec import Operator
from h2o_runtime.operators import (
    CACHED_ATTENTION,
    CHUNKED_INTRA_ATTENTION,
    PARTIAL_ATTENTION,
    PROMPT_ATTENTION,
    STEP_ATTENTION,
)


def provider_with_sinks(provider: AttentionProvider, sinks: Sequence[float]) -> AttentionProvider:
    """A provider of one layer, whose operators have the layer's sinks in them. A provider whose kernels join sinks
    to the states that they compute has `with_sinks`.
    """
    own: Callable[[Sequence[float]], AttentionProvider] | None = getattr(provider, "with_sinks", None)
    return own(sinks) if own else ProviderWithSinks(provider, sinks)


class LayerProvider:
    """A provider of one layer, on top of one that layers share and that is active already."""

    in_graphs = False  # the kernel there takes no sinks

    def __init__(self, provider: AttentionProvider) -> None:
        self.name = provider.name
        self._provider = provider

    def takes(self, shape: AttentionShape) -> bool:
        return self._provider.takes(shape)

    def activate(self, shape: AttentionShape) -> None:
        self._provider.activate(shape)

    def deactivate(self) -> None:
        self._provider.deactivate()


class ProviderWithSinks(LayerProvider):
    """Its operators have the layer's sinks in them. Memory sets are chosen by probabilities without sinks."""

    def __init__(self, provider: AttentionProvider, sinks: Sequence[float]) -> None:
        super().__init__(provider)
        self.precision = getattr(provider, "precision", None)
        self._sinks = np.array(sinks, np.float32)
        self._state = np.empty((2, 0, len(sinks)), np.float32)  # m and l

    def run(self, operator: Operator, kv: KV | None = None, **arguments: Any) -> None:
        if operator is STEP_ATTENTION:
            assert kv is not None
            k, v = arguments.pop("k"), arguments.pop("v", None)
            append_rows(self._provider, k, v, int(kv.length) - 1, kv)
            operator = CACHED_ATTENTION
        if operator is CACHED_ATTENTION:
            operator = PARTIAL_ATTENTION
        if operator in (PARTIAL_ATTENTION, PROMPT_ATTENTION):
            arguments["m"], arguments["l"] = self._room(len(arguments["q"]))
        self._provider.run(operator, kv, **arguments)
        if operator in (PARTIAL_ATTENTION, PROMPT_ATTENTION, CHUNKED_INTRA_ATTENTION):
            add_sinks(arguments["o"], arguments["m"], arguments["l"], self._sinks)

    def _room(self, rows: int) -> NDArray[np.float32]:
        if self._state.shape[1] < rows:
            self._state = np.empty((2, rows, len(self._sinks)), np.float32)
        return self._state[:, :rows]


def add_sinks(o: Tensor, m: Tensor, l: Tensor, sinks: NDArray[np.float32]) -> None:
    """Fuse, in place, a state o [n, Hq, dv], m, l [n, Hq] with that of a key whose scores are sinks [Hq] and whose
    value is 0."""
    top = np.maximum(m, sinks)
    scaled = np.exp(m - top) * l
    total = scaled + np.exp(sinks - top)
    np.multiply(o, (scaled / total)[..., None], out=o, casting="same_kind")
    m[:], l[:] = top, total
