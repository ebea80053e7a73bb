"""The format of stored rows: the model's dtype, float16, or int8 with a scale per row and head."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from h2o_runtime.caches.cache import Cache
from h2o_runtime.components.options import option
from h2o_runtime.devices import Device, Tensor
from h2o_runtime.kv import KV
from h2o_runtime.layer_spec import CacheRow
from h2o_runtime.model_spec import ModelSpec

CacheDtype: TypeAlias = Literal["model", "float16", "int8"]


@dataclass(frozen=True)
class RowFormat:
    """The format of a layer's rows: `dtype`, and for int8 a float32 scale per head."""

    dtype: np.dtype[Any]
    row: CacheRow

    @classmethod
    def of(cls, model: ModelSpec, stored: CacheDtype) -> tuple[RowFormat, ...]:
        """Of every layer."""
        dtype = np.dtype(model.dtype if stored == "model" else stored)
        return tuple(cls(dtype, spec.row) for spec in model.each_layer)

    @property
    def scaled(self) -> bool:
        return self.dtype == np.int8

    @property
    def row_bytes(self) -> int:
        """Bytes of one row's keys and values."""
        scale = np.dtype(np.float32).itemsize if self.scaled else 0
        tensors = 1 if self.row.shared else 2
        return tensors * self.row.heads * (self.row.size * self.dtype.itemsize + scale)

    def new(self, rows: int, device: Device) -> StoredRows:
        shape = (rows, self.row.heads, self.row.size)
        k = device.empty(shape, self.dtype)
        v = k if self.row.shared else device.empty(shape, self.dtype)
        if not self.scaled:
            return StoredRows(k, v, None)
        k_scales = device.empty(shape[:2], np.float32)
        v_scales = k_scales if self.row.shared else device.empty(shape[:2], np.float32)
        return StoredRows(k, v, (k_scales, v_scales))


@dataclass(frozen=True)
class StoredRows:
    """Keys and values of one layer: k, v [rows, Hkv, d], one tensor where they share it.

    scales  of integers: [rows, Hkv] of each
    """

    k: Tensor
    v: Tensor
    scales: tuple[Tensor, Tensor] | None

    def view(self, length: int | Tensor, pages: Tensor | None = None, page_rows: int = 0) -> KV:
        return KV(self.k, self.v, length, pages, page_rows, self.scales)

    @property
    def nbytes(self) -> int:
        return sum(int(array.nbytes) for array in self.view(0).tensors.values())


class FreshRows:
    """The buffer into which dense graphs of a layer write rows for conversion: k, v [rows, Hkv, d] of the
    model's dtype; k alone if values are stored in keys.
    """

    def __init__(self, format: RowFormat, rows: int, device: Device) -> None:
        self._tensors = format.new(rows, device).view(0).tensors

    def rows(self, start: int, stop: int) -> dict[str, Tensor]:
        return {name: tensor[start:stop] for name, tensor in self._tensors.items()}


class Fresh:
    """The `FreshRows` of every layer. Layers with the same row sizes share one, because one is open at a
    time; a layer whose rows others read has its own.
    """

    def __init__(self, model: ModelSpec, rows: int, device: Device) -> None:
        keys = self._keys(model)
        fresh = {key: FreshRows(key[0], rows, device) for key in dict.fromkeys(keys)}
        self.layers = [fresh[key] for key in keys]

    @classmethod
    def size(cls, model: ModelSpec, rows: int) -> int:
        """Bytes of that many rows."""
        return rows * sum(format.row_bytes for format, _ in set(cls._keys(model)))

    @staticmethod
    def _keys(model: ModelSpec) -> list[tuple[RowFormat, int | None]]:
        """Equal for layers that share a buffer: the format, and the layer that lends its rows."""
        layers = enumerate(zip(RowFormat.of(model, "model"), model.each_layer, strict=True))
        return [(format, layer if spec.lends else spec.source) for layer, (format, spec) in layers]


@dataclass(frozen=True)
class StoredCache(Cache):
    """A cache that can store rows in a smaller format than the model computes."""

    rows: CacheDtype = option(
        "model",
        "Row format of keys and values: model is the model's own; int8 has a scale per row and head.",
        label="Keys and values as",
    )

    @classmethod
    def variants(cls, model: ModelSpec) -> Iterator[Cache]:
        for dtype in get_args(CacheDtype):
            if dtype != model.dtype:
                yield cls(rows=dtype)

    def row_formats(self, model: ModelSpec) -> tuple[RowFormat, ...]:
        """Of every layer."""
        return RowFormat.of(model, self.rows)

    def stored_dtype(self, model: ModelSpec) -> str:
        return self.row_formats(model)[0].dtype.name

    def token_bytes(self, model: ModelSpec) -> int:
        """Bytes of a token in all layers."""
        formats = zip(self.row_formats(model), model.each_layer, strict=True)
        return sum(format.row_bytes for format, spec in formats if spec.has_rows)
