"""One array of keys and one of values a layer, row by row. Dense graphs write straight into it."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import ClassVar

import numpy as np

from h2o_runtime.attention.base import AttentionProvider
from h2o_runtime.caches.base import Cache, KVStore, LayerStore, Rows
from h2o_runtime.devices import Device, Tensor
from h2o_runtime.kv import KV
from h2o_runtime.model import ModelSpec


@dataclass(frozen=True)
class Contiguous(Cache):
    """Memory is reserved for the whole context."""

    name: ClassVar[str] = "contiguous"
    title: ClassVar[str] = "contiguous"

    def new_store(
        self, model: ModelSpec, capacity: int, device: Device, provider: AttentionProvider
    ) -> KVStore:
        return ContiguousStore(model, capacity, device, provider)

    def store_bytes(self, model: ModelSpec, context: int) -> int:
        row = model.kv_heads * model.head_size * np.dtype(model.dtype).itemsize
        return 2 * model.layers * context * row


class ContiguousStore(KVStore):
    """keys[layer], values[layer]: [cap, Hkv, d] in the model's dtype, on the device."""

    def __init__(self, model: ModelSpec, capacity: int, device: Device, provider: AttentionProvider) -> None:
        shape, dtype = (capacity, model.kv_heads, model.head_size), np.dtype(model.dtype)
        self.keys: list[Tensor] = [device.empty(shape, dtype) for _ in range(model.layers)]
        self.values: list[Tensor] = [device.empty(shape, dtype) for _ in range(model.layers)]
        # A recorded step has fixed addresses: its row is appended from here.
        step = {name: device.empty((1, *shape[1:]), dtype) for name in ("k", "v")}
        pairs = zip(self.keys, self.values, strict=True)
        self._layers = [_Layer(k, v, step, provider) for k, v in pairs]

    def open(self, layer: int) -> _Layer:
        return self._layers[layer]

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in (*self.keys, *self.values))


class _Layer(LayerStore):
    """Opening it costs nothing: it is always there."""

    def __init__(self, k: Tensor, v: Tensor, step: dict[str, Tensor], provider: AttentionProvider) -> None:
        self._k, self._v = k, v
        self._step = step
        self._provider = provider

    def __enter__(self) -> _Layer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def target(self, rows: Rows) -> dict[str, Tensor]:
        if rows.at is not None:
            return self._step
        return {"k": self._k[rows.start : rows.stop], "v": self._v[rows.start : rows.stop]}

    def commit(self, rows: Rows) -> None:
        if rows.at is not None:
            self._provider.cache_append(self._step["k"], self._step["v"], rows.at, self.view(rows.at))

    def view(self, length: int | Tensor) -> KV:
        return KV(self._k, self._v, length)
