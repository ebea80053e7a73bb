"""A decode step of several rows of one session, layer by layer: for models whose step is not one graph.

Each dense graph takes all rows together, and each layer attends to one row after the other. So a row's logits have
the bits of a step of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

import numpy as np

from h2o_runtime.attention.provider import append_rows
from h2o_runtime.backend import Backend
from h2o_runtime.caches import LayerStore, Rows
from h2o_runtime.devices import Device, Tensor
from h2o_runtime.execution.bound_step import DenseTensors
from h2o_runtime.layer_spec import CacheRow, LayerSpec
from h2o_runtime.layers.activations import Activations
from h2o_runtime.layers.live import LiveLayers
from h2o_runtime.limits import MOST_STEP_ROWS
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.policies.decode import FullDecode, StepCall
from h2o_runtime.schedule import Span
from h2o_runtime.sessions.session import Session

Calls = Sequence[Callable[[], None]]  # of all dense graphs


class SessionRows:
    """Calls are bound once for a session and a number of rows. Layers with rows write them into buffers, from which
    they are appended to the cache.
    """

    def __init__(
        self,
        dense_graphs: Sequence[str],
        backend: Backend,
        layers: LiveLayers,
        buffers: Activations,
        device: Device,
    ) -> None:
        self._dense_graphs, self._backend, self._layers = dense_graphs, backend, layers
        self._buffers, self._device, self._model = buffers, device, backend.model
        self._tensors, self._decoding = DenseTensors(self._model, buffers), FullDecode()
        self._positions = device.empty((MOST_STEP_ROWS,), np.int64)
        self._new = _new_rows(self._model, device)
        self._calls: WeakKeyDictionary[Session, dict[int, Calls]] = WeakKeyDictionary()

    def run(self, tokens: Sequence[int], session: Session) -> Tensor:
        """n consecutive tokens → logits float32 [n, vocab], valid until the next call. Writes cache rows."""
        n, past, first = len(tokens), session.length, session.next_position
        session.store.before_step(past, n)
        calls = self._bound(n, session)
        self._device.upload(np.array(tokens, np.int64), self._buffers.tokens[:n])
        self._device.upload(np.arange(first, first + n), self._positions[:n])
        for layer in range(self._model.layers):
            with session.store.open(layer) as cache:
                self._run_layer(layer, calls[layer], cache, Rows(past, past + n))
        calls[-1]()
        return self._buffers.logits[:n]

    def clear(self) -> None:
        """Drop all bindings, and the memory that they reference."""
        self._calls.clear()

    def _run_layer(self, layer: int, dense: Callable[[], None], cache: LayerStore, rows: Rows) -> None:
        spec, provider, n = self._model.layer(layer), self._layers.providers[layer], rows.stop - rows.start
        if spec.state is not None:
            cache.target(rows)
            dense()
            cache.commit(rows)
        else:
            dense()
            new = self._of(spec, n)
            append_rows(provider, new["k"], new.get("v"), rows.start, cache.view(rows.stop))
        q, o = self._buffers.q[layer][:n], self._buffers.attention[layer][:n]
        layers = self._layers[layer]
        call = StepCall(layer, q, o, cache.view(rows.stop), provider)
        layers.attend_rows(layers.decoding(self._decoding), call, None)

    def _of(self, spec: LayerSpec, n: int) -> dict[str, Tensor]:
        return {name: tensor[:n] for name, tensor in self._new[spec.row].items()}

    def _bound(self, n: int, session: Session) -> Calls:
        calls = self._calls.setdefault(session, {})
        if n not in calls:
            bound = [self._bind(layer, n, session) for layer in range(self._model.layers)]
            head = self._tensors.of_head(Span(0, n), self._buffers.tokens[:n])
            calls[n] = [*bound, self._backend.bound(self._dense_graphs[-1], *head)]
        return calls[n]

    def _bind(self, layer: int, n: int, session: Session) -> Callable[[], None]:
        spec, tokens, positions = self._model.layer(layer), self._buffers.tokens[:n], self._positions[:n]
        with session.store.open(layer) as cache:
            new = self._of(spec, n) if spec.state is None else cache.target(Rows(0, n))
            tensors = self._tensors.of_layer(layer, Span(0, n), tokens, positions, new, cache.given())
        return self._backend.bound(self._dense_graphs[layer], *tensors)


def _new_rows(model: ModelSpec, device: Device) -> dict[CacheRow, dict[str, Tensor]]:
    """Buffers for a step's rows of each size."""
    sizes = {spec.row for spec in model.each_layer if spec.has_rows}
    shapes = {row: (MOST_STEP_ROWS, row.heads, row.size) for row in sizes}
    names = {row: "k" if row.shared else "kv" for row in sizes}
    return {
        row: {name: device.empty(shape, np.dtype(model.dtype)) for name in names[row]}
        for row, shape in shapes.items()
    }
