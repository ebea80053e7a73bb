"""What rows are stored as: the model's own numbers, float16, or int8 with a scale a row and head."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from h2o_runtime.caches.base import Cache
from h2o_runtime.devices import Device, Tensor
from h2o_runtime.kv import KV
from h2o_runtime.model import ModelSpec
from h2o_runtime.options import option

CacheDtype: TypeAlias = Literal["model", "float16", "int8"]


@dataclass(frozen=True)
class RowForm:
    """How one row of a layer is stored: `dtype`, and where it is int8 a float32 scale a head."""

    dtype: np.dtype[Any]
    kv_heads: int
    head_size: int

    @classmethod
    def of(cls, model: ModelSpec, stored: CacheDtype) -> RowForm:
        dtype = np.dtype(model.dtype if stored == "model" else stored)
        return cls(dtype, model.kv_heads, model.head_size)

    @property
    def scaled(self) -> bool:
        return self.dtype == np.int8

    @property
    def row_bytes(self) -> int:
        """Of a row's keys and values."""
        scale = np.dtype(np.float32).itemsize if self.scaled else 0
        return 2 * self.kv_heads * (self.head_size * self.dtype.itemsize + scale)

    def new(self, rows: int, device: Device) -> StoredRows:
        shape = (rows, self.kv_heads, self.head_size)
        scales = None
        if self.scaled:
            scales = (device.empty(shape[:2], np.float32), device.empty(shape[:2], np.float32))
        return StoredRows(device.empty(shape, self.dtype), device.empty(shape, self.dtype), scales)


@dataclass(frozen=True)
class StoredRows:
    """Keys and values of one layer: k, v [rows, Hkv, d]; scales [rows, Hkv] of each, of integers."""

    k: Tensor
    v: Tensor
    scales: tuple[Tensor, Tensor] | None

    def view(self, length: int | Tensor, pages: Tensor | None = None, page_rows: int = 0) -> KV:
        return KV(self.k, self.v, length, pages, page_rows, self.scales)

    @property
    def nbytes(self) -> int:
        return sum(int(array.nbytes) for array in (self.k, self.v, *(self.scales or ())))


class Fresh:
    """Where dense graphs write rows that must be converted: k, v [rows, Hkv, d] of the model's dtype.

    One for all layers, of which one is open at a time.
    """

    def __init__(self, model: ModelSpec, rows: int, device: Device) -> None:
        shape = (rows, model.kv_heads, model.head_size)
        self.k: Tensor = device.empty(shape, model.dtype)
        self.v: Tensor = device.empty(shape, model.dtype)

    def rows(self, start: int, stop: int) -> dict[str, Tensor]:
        return {"k": self.k[start:stop], "v": self.v[start:stop]}

    @staticmethod
    def size(model: ModelSpec, rows: int) -> int:
        """Bytes of that many rows."""
        return rows * RowForm.of(model, "model").row_bytes


@dataclass(frozen=True)
class StoredCache(Cache):
    """A cache whose rows can be stored shorter than the model computes."""

    cache_dtype: Literal["model", "float16", "int8"] = option(
        "model",
        "What keys and values are stored as: model is what the model computes in; int8 has a scale a row and head.",
        label="Keys and values as",
        symbol="kv",
    )

    @classmethod
    def variants(cls, model: ModelSpec) -> Iterator[Cache]:
        for dtype in get_args(CacheDtype):
            if dtype != model.dtype:
                yield cls(cache_dtype=dtype)

    def form(self, model: ModelSpec) -> RowForm:
        return RowForm.of(model, self.cache_dtype)

    def stored_dtype(self, model: ModelSpec) -> str:
        return self.form(model).dtype.name
