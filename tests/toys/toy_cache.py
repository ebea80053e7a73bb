"""A cache in one file: rows lie in the order of a stack, the last one first, and are put in order to be read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from h2o_runtime.attention import AttentionProvider
from h2o_runtime.caches import Cache, KVStore, LayerStore, Rows
from h2o_runtime.devices import Device
from h2o_runtime.kv import KV
from h2o_runtime.model_spec import ModelSpec


@dataclass(frozen=True)
class Backwards(Cache):
    name: ClassVar[str] = "backwards"
    title: ClassVar[str] = "last row first"

    def new_store(
        self, model: ModelSpec, capacity: int, device: Device, providers: Sequence[AttentionProvider]
    ) -> BackwardsStore:
        return BackwardsStore(model, capacity)

    def store_bytes(self, model: ModelSpec, context: int) -> int:
        return 2 * (model.layers + 2) * context * model.kv_heads * model.head_size * 4


class BackwardsStore(KVStore):
    nbytes = 0

    def __init__(self, model: ModelSpec, capacity: int) -> None:
        shape = (capacity, model.kv_heads, model.head_size)
        self.kept = np.full(
            (model.layers, 2, *shape), np.nan, model.dtype
        )  # what nobody wrote is not a number
        self.written = np.full((2, *shape), np.nan, model.dtype)
        self.step = np.full((2, 1, *shape[1:]), np.nan, model.dtype)
        self.ordered = np.full((2, *shape), np.nan, model.dtype)

    @contextmanager
    def open(self, layer: int) -> Iterator[_Layer]:
        yield _Layer(self, self.kept[layer])


class _Layer(LayerStore):
    def __init__(self, store: BackwardsStore, kept: np.ndarray[Any, Any]) -> None:
        self.store, self.kept = store, kept

    def target(self, rows: Rows) -> dict[str, Any]:
        return dict(zip("kv", self._new(rows), strict=True))

    def commit(self, rows: Rows) -> None:
        end = self.kept.shape[1]
        self.kept[:, end - rows.stop : end - rows.start] = self._new(rows)[:, ::-1]

    def _new(self, rows: Rows) -> Any:
        if rows.at is not None:
            return self.store.step
        return self.store.written[:, rows.start : rows.stop]

    def view(self, length: Any) -> KV:
        self.store.ordered[:, :length] = self.kept[:, ::-1][:, :length]
        return KV(*self.store.ordered, int(length))
