"""A layer kind, with `toy_layer_export`: one key head, and queries that are doubled on the way.

Dense graphs make queries of half the size that attention is to see; attention has buffers of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from h2o_runtime.layers import LayerKind, LayerResources, LoadedLayers
from h2o_runtime.policies.prefill import LayerCall


@dataclass(frozen=True)
class Narrow(LayerKind):
    name: ClassVar[str] = "narrow"
    title: ClassVar[str] = "one doubled head"

    def load(self, resources: LayerResources) -> NarrowLayers:
        return NarrowLayers(resources)

    def buffer_bytes(self, model: Any, capacity: int, cache: Any) -> int:
        spec = next(spec for spec in model.each_layer if spec.kind == self.name)
        return 2 * capacity * spec.query_heads * spec.head_size * np.dtype(model.dtype).itemsize


class NarrowLayers(LoadedLayers):
    in_step_graph = False

    def __init__(self, resources: LayerResources) -> None:
        super().__init__(resources)
        spec = next(spec for spec in resources.model.each_layer if spec.kind == Narrow.name)
        shape = (resources.capacity, spec.query_heads, spec.head_size)
        self.q, self.o = (np.full(shape, np.nan, resources.model.dtype) for _ in range(2))

    def after(self, layer: int, rows: Any, past: int, cache: Any, new: Any, flow: Any) -> None:
        self._double(layer, slice(rows.start, rows.stop))

    def call(self, call: LayerCall) -> LayerCall:
        return replace(call, q=self.q[: len(call.q)], o=self.o[: len(call.q)])

    def before(self, layer: int, rows: Any) -> None:
        self._hand_on(layer, slice(rows.start, rows.stop))

    def step(self, layer: int) -> tuple[Any, Any]:
        return self.q[:1], self.o[:1]

    def bound_after(self, layer: int) -> tuple[Callable[[], None], ...]:
        return (lambda: self._double(layer, slice(0, 1)),)

    def bound_before(self, layer: int) -> tuple[Callable[[], None], ...]:
        return (lambda: self._hand_on(layer, slice(0, 1)),)

    @property
    def nbytes(self) -> int:
        return self.q.nbytes + self.o.nbytes

    def _double(self, layer: int, rows: slice) -> None:
        self.q[rows] = 2 * self._buffers.q[layer][rows]

    def _hand_on(self, layer: int, rows: slice) -> None:
        self._buffers.attention[layer][rows] = self.o[rows]
