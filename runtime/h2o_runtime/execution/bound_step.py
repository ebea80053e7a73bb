"""Which tensors each dense graph reads and writes, and decode steps whose calls are bound: the same memory in every
step, so no work to find it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from h2o_runtime.attention.provider import AttentionProvider, append_rows
from h2o_runtime.backend import Backend
from h2o_runtime.caches import LayerStore, Rows
from h2o_runtime.devices import Device, Tensor
from h2o_runtime.layer_spec import CacheRow, LayerSpec
from h2o_runtime.layers.activations import Activations
from h2o_runtime.layers.live import LiveLayers
from h2o_runtime.limits import MOST_STEP_ROWS
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.policies.decode import FullDecode, StepCall
from h2o_runtime.schedule import Span
from h2o_runtime.sessions.session import Session

Tensors = dict[str, Tensor]  # by the graph's names


class DenseTensors:
    """Of one model, in the buffers between its layers."""

    def __init__(self, model: ModelSpec, buffers: Activations) -> None:
        self._model, self._buffers = model, buffers
        self._rotations = [buffers.rotations[spec.rotation] for spec in model.each_layer]

    def of_layer(
        self, layer: int, tile: Span, tokens: Tensor, positions: Tensor, written: Tensors, given: Tensors
    ) -> tuple[Tensors, Tensors]:
        """Inputs and outputs of dense graph `layer` on a tile of the buffers.

        tokens, positions  int64 [len(tile)]
        written, given     `LayerStore.target` and `LayerStore.given` of the layer
        """
        b = self._buffers
        cut = slice(tile.start, tile.stop)
        outputs = {"residual_out": b.residual(layer)[cut], "q": b.q[layer][cut], **written}
        if (gate := b.gates[layer]) is not None:
            outputs["gate_out"] = gate[cut]
        if layer == 0:
            outputs |= {name: rows[cut] for table in b.rotations for name, rows in table.items()}
            return {"tokens": tokens, "positions": positions, **given}, outputs
        inputs = {**self.behind(layer - 1, tile, tokens), **given}
        inputs |= {name: rows[cut] for name, rows in self._rotations[layer].items()}
        return inputs, outputs

    def of_head(self, rows: Span, tokens: Tensor) -> tuple[Tensors, Tensors]:
        """Inputs and outputs of the last dense graph on rows of the buffers, which are of these tokens."""
        inputs = self.behind(self._model.layers - 1, rows, tokens)
        outputs = {"logits": self._buffers.logits[: len(rows)]}
        if self._buffers.hidden is not None:
            outputs["hidden"] = self._buffers.hidden[: len(rows)]
        return inputs, outputs

    def behind(self, layer: int, rows: Span, tokens: Tensor) -> Tensors:
        """What the dense graph behind a layer reads of that layer, for rows of these tokens."""
        b, cut = self._buffers, slice(rows.start, rows.stop)
        inputs = {"attention": b.attention[layer][cut], "residual": b.residual(layer)[cut]}
        if (gate := b.gates[layer]) is not None:
            inputs["gate"] = gate[cut]
        if self._model.layer_embedding:
            inputs |= {"tokens": tokens, "embedded": b.embedded[cut]}
        return inputs


@dataclass(frozen=True)
class BoundLayer:
    """One layer of a decode step up to its attention, and the arguments of attention."""

    run: Callable[[], None]
    q: Tensor
    o: Tensor
    provider: AttentionProvider


@dataclass(frozen=True)
class BoundStep:
    """A session's decode step: the layers, then the head."""

    layers: Sequence[BoundLayer]
    head: Callable[[], None]


class StepBinder:
    """Binds the step of each session once."""

    def __init__(
        self,
        dense_graphs: Sequence[str],
        backend: Backend,
        layers: LiveLayers,
        tensors: DenseTensors,
        token: Tensor,
        where: Tensor,
    ) -> None:
        """token: int64 [1]. where: int64 [3], the step's position, row and cache length. Steps read both on the
        device.
        """
        self._dense_graphs, self._backend = dense_graphs, backend
        self._layers, self._tensors = layers, tensors
        self._token, self._where = token, where
        self._steps: WeakKeyDictionary[Session, BoundStep] = WeakKeyDictionary()

    def step(self, session: Session) -> BoundStep:
        """The session's step."""
        bound = self._steps.get(session)
        if bound is None:
            rows = Rows(0, 1, at=self._where[1:2])
            layers = [self._layer(layer, rows, session) for layer in range(len(self._dense_graphs) - 1)]
            bound = self._steps[session] = BoundStep(layers, self.head(self._token))
        return bound

    def head(self, tokens: Tensor) -> Callable[[], None]:
        """The head on a step's rows, of these tokens."""
        tensors = self._tensors.of_head(Span(0, len(tokens)), tokens)
        head = self._backend.bound(self._dense_graphs[-1], *tensors)
        last = len(self._dense_graphs) - 2
        return _in_turn(*self._layers[last].bound_before(last), head)

    def clear(self) -> None:
        """Drop all bindings, and the memory that they reference."""
        self._steps.clear()

    def _layer(self, layer: int, rows: Rows, session: Session) -> BoundLayer:
        with session.store.open(layer) as cache:
            written, given = cache.target(rows), cache.given()
        tensors = self._tensors.of_layer(layer, Span(0, 1), self._token, self._where[0:1], written, given)
        dense = self._backend.bound(self._dense_graphs[layer], *tensors)
        before = self._layers[layer - 1].bound_before(layer - 1) if layer else ()
        run = _in_turn(*before, dense, *self._layers[layer].bound_after(layer))
        return BoundLayer(run, *self._layers[layer].step(layer), self._layers.providers[layer])


def _in_turn(*calls: Callable[[], None]) -> Callable[[], None]:
    if len(calls) == 1:
        return calls[0]

    def run() -> None:
        for call in calls:
            call()

    return run


Calls = Sequence[Callable[[], None]]  # of all dense graphs


class SessionRows:
    """A decode step of several rows of one session, layer by layer: for models whose step is not one graph.

    Each dense graph takes all rows together, and each layer attends to one row after the other. So a row's logits
    have the bits of a step of its own. Calls are bound once for a session and a number of rows. Layers with rows
    write them into buffers, from which they are appended to the cache.
    """

    def __init__(
        self,
        dense_graphs: Sequence[str],
        backend: Backend,
        layers: LiveLayers,
        tensors: DenseTensors,
        buffers: Activations,
        device: Device,
    ) -> None:
        self._dense_graphs, self._backend, self._layers = dense_graphs, backend, layers
        self._buffers, self._device, self._model = buffers, device, backend.model
        self._tensors, self._decoding = tensors, FullDecode()
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
