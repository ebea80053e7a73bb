"""Baselines with the same number of keys as a rule. Policies for evaluation, not registered in the
product.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from h2o_cli.eval.recall import by_list, past_mass
from h2o_runtime.attention import PartialSoftmax
from h2o_runtime.components.options import option
from h2o_runtime.components.registry import Registry
from h2o_runtime.devices import Device, Tensor
from h2o_runtime.errors import ConfigError
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.operators import CHUNKED_INTRA_ATTENTION, MEMORY_FUSED_ATTENTION
from h2o_runtime.policies.prefill import LayerCall, PrefillPolicy
from h2o_runtime.schedule import Span, spans, tail_start

Int32 = NDArray[np.int32]


class Scratch:
    """The model's data for a baseline, and states of partial softmaxes, m and l [cap, Hq]."""

    def __init__(self, model: ModelSpec, capacity: int, device: Device) -> None:
        self.model, self.device = model, device
        self._m, self._l = (device.zeros((capacity, model.query_heads), np.float32) for _ in range(2))

    def partial(self, o: Tensor) -> PartialSoftmax:
        return PartialSoftmax(o, self._m[: len(o)], self._l[: len(o)])


@dataclass(frozen=True)
class Baseline(PrefillPolicy[Scratch]):
    """Chunks that see themselves and the same number of past keys as the rule that they are compared with, and the
    same dense tail.
    """

    phases: ClassVar[tuple[str, ...]] = ()

    chunk_size: int = option(1024, "Chunk S.", least=2)
    local: int = option(64, "Local window L.", least=0)
    heavy: int = option(448, "Other keys H.", least=0)
    dense_tail: int = option(128, "Last tokens that attend to everything.", least=0)
    tail_tile: int = option(1, "Rows of a tile, with which the tail begins.", least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.memory < 1:
            raise ConfigError(
                "local and heavy are both 0, so memory sets are empty: raise one of them", field="heavy"
            )

    @property
    def memory(self) -> int:
        return self.local + self.heavy

    def new_state(self, model: ModelSpec, capacity: int, device: Device) -> Scratch:
        return Scratch(model, capacity, device)

    def attend(self, call: LayerCall, state: Scratch) -> None:
        n, whole = len(call.q), state.partial(call.o)
        for chunk in spans(n, self.chunk_size):
            call.flow.needs(chunk.stop)
            new, rows = slice(chunk.start, chunk.stop), whole.rows(chunk.start, chunk.stop)
            k, v = call.new_rows(new.start, new.stop)
            call.provider.run(
                CHUNKED_INTRA_ATTENTION, q=call.q[new], k=k, v=v, chunk_size=self.chunk_size, **rows.out
            )
            if chunk.start:
                memory = self._keys(call, chunk, state)
                call.provider.run(MEMORY_FUSED_ATTENTION, call.kv, q=call.q[new], memory=memory, **rows.intra)
            call.checkpoint(chunk.stop)
        call.dense_rows(self.first_of_tail(n), n)
        call.flow.finished(n)

    def visible_pairs(self, n: int) -> int:
        pairs = 0
        for chunk in spans(n, self.chunk_size):
            rows = len(chunk)
            pairs += rows * (rows + 1) // 2 + rows * min(self.memory, chunk.start)
        tail = n - self.first_of_tail(n)
        return pairs + tail * n - tail * (tail - 1) // 2

    @abstractmethod
    def choose(self, call: LayerCall, chunk: Span, state: Scratch) -> Int32:
        """Of the keys before a chunk, more than `memory`, those that its queries see: [Hkv, memory], sorted."""

    def first_of_tail(self, n: int) -> int:
        """First row of the dense tail; n if there is none."""
        whole = n <= self.chunk_size
        return n if whole else tail_start(n, self.dense_tail, self.chunk_size, self.tail_tile)

    def _keys(self, call: LayerCall, chunk: Span, state: Scratch) -> Tensor:
        if chunk.start <= self.memory:
            keys = np.tile(np.arange(chunk.start, dtype=np.int32), (call.k.shape[1], 1))
        else:
            keys = self.choose(call, chunk, state)
        on_device = state.device.empty(keys.shape, np.int32)
        state.device.upload(np.ascontiguousarray(keys), on_device)
        return on_device


@dataclass(frozen=True)
class LocalOnly(Baseline):
    name: ClassVar[str] = "local"
    title: ClassVar[str] = "the last keys only"

    def choose(self, call: LayerCall, chunk: Span, state: Scratch) -> Int32:
        return np.tile(
            np.arange(chunk.start - self.memory, chunk.start, dtype=np.int32), (call.k.shape[1], 1)
        )


@dataclass(frozen=True)
class SinksAndLocal(Baseline):
    name: ClassVar[str] = "sinks"
    title: ClassVar[str] = "the first keys and the last"

    sinks: int = option(4, "First keys that are kept.", least=0)

    def choose(self, call: LayerCall, chunk: Span, state: Scratch) -> Int32:
        first = min(self.sinks, self.memory)
        keys = np.concatenate([np.arange(first), np.arange(chunk.start - self.memory + first, chunk.start)])
        return np.tile(keys.astype(np.int32), (call.k.shape[1], 1))


@dataclass(frozen=True)
class RandomKeys(Baseline):
    """The local window, and random others: a chunk has the same keys in every run."""

    name: ClassVar[str] = "random"
    title: ClassVar[str] = "the last keys and others by lot"

    def choose(self, call: LayerCall, chunk: Span, state: Scratch) -> Int32:
        lot = np.random.default_rng([call.layer, chunk.start])
        earlier = chunk.start - self.local
        local = np.arange(earlier, chunk.start)
        drawn = [lot.choice(earlier, self.heavy, replace=False) for _ in range(call.k.shape[1])]
        return np.array([[*sorted(keys), *local] for keys in drawn], np.int32)


@dataclass(frozen=True)
class Oracle(Baseline):
    """The local window, and the keys with the most probability from the chunk's queries under full attention."""

    name: ClassVar[str] = "oracle"
    title: ClassVar[str] = "the keys of most attention"

    def choose(self, call: LayerCall, chunk: Span, state: Scratch) -> Int32:
        q = state.device.download(call.q[chunk.start : chunk.stop])
        k = state.device.download(call.k[: chunk.stop])
        mass = by_list(past_mass(q, k, chunk.start, chunk.start, state.model.scale), k.shape[1])
        mass[:, chunk.start - self.local :] = np.inf
        return np.sort(np.argsort(-mass, axis=1, kind="stable")[:, : self.memory], axis=1).astype(np.int32)


BASELINES: Registry[Baseline] = Registry(
    LocalOnly,
    SinksAndLocal,
    RandomKeys,
    Oracle,
    base=Baseline,
    field="baseline",
    group="h2o_edge.eval_baselines",
)
