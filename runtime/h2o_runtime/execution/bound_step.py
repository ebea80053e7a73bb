"""Decode steps whose calls of the backend are bound: the same memory in every step, so no work to find it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from h2o_runtime.attention.provider import AttentionProvider
from h2o_runtime.backend import Backend
from h2o_runtime.caches import Rows
from h2o_runtime.devices import Tensor
from h2o_runtime.execution.dense_tensors import DenseTensors
from h2o_runtime.layers.live import LiveLayers
from h2o_runtime.schedule import Span
from h2o_runtime.sessions.session import Session


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
