"""One array of keys and one of values per layer, row by row. Dense graphs write directly into it if the
format allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.attention.provider import AttentionProvider, append_rows
from h2o_runtime.caches.cache import KVStore, LentRows, PresentLayer, Rows
from h2o_runtime.caches.sliding import AT_ONCE, SlidingRows, shared_rows, slides, sliding_bytes
from h2o_runtime.caches.stored import Fresh, FreshRows, RowFormat, StoredCache, StoredRows
from h2o_runtime.devices import Device, Tensor
from h2o_runtime.kv import KV
from h2o_runtime.model_spec import ModelSpec


@dataclass(frozen=True)
class Contiguous(StoredCache):
    """Memory is reserved for the whole context."""

    name: ClassVar[str] = "contiguous"
    title: ClassVar[str] = "contiguous"
    shared_values: ClassVar[bool] = True
    mixed_rows: ClassVar[bool] = True
    several_at_once: ClassVar[bool] = True
    lends_rows: ClassVar[bool] = True

    def new_store(
        self, model: ModelSpec, capacity: int, device: Device, providers: Sequence[AttentionProvider]
    ) -> KVStore:
        return ContiguousStore(model, self.row_formats(model), capacity, device, providers)

    def store_bytes(self, model: ModelSpec, context: int) -> int:
        formats = self.row_formats(model)
        whole = [
            format
            for spec, format in zip(model.each_layer, formats, strict=True)
            if spec.has_rows and not slides(spec, context)
        ]
        rows = context * sum(format.row_bytes for format in whole) + sliding_bytes(model, formats, context)
        return rows if self.stored_dtype(model) == model.dtype else rows + Fresh.size(model, context)


class ContiguousStore(KVStore):
    """`capacity` rows of each layer in the given formats, on the device; for a layer with a window, the last
    rows only, where the host's memory is the device's: a recorded step has fixed places.
    """

    def __init__(
        self,
        model: ModelSpec,
        formats: Sequence[RowFormat],
        capacity: int,
        device: Device,
        providers: Sequence[AttentionProvider],
    ) -> None:
        # A recorded step has fixed addresses: its row is appended from here.
        step = Fresh(model, 1, device).layers
        fresh: list[FreshRows] | list[None] = [None] * model.layers
        self._other_bytes = 0
        if formats[0].dtype != np.dtype(model.dtype):
            fresh = Fresh(model, capacity, device).layers
            self._other_bytes = Fresh.size(model, capacity)
        specs = model.each_layer
        sliding = [i for i, spec in enumerate(specs) if device.name == "cpu" and slides(spec, capacity)]
        rows = shared_rows([specs[i].window for i in sliding], capacity)
        shared = {format: format.new(rows, device) for format in dict.fromkeys(formats[i] for i in sliding)}
        self._other_bytes += sum(array.nbytes for array in shared.values())
        self.at_once = AT_ONCE if sliding else None
        self._open: list[LayerRows | SlidingRows | LentRows] = []
        for i, (format, scales, new, provider) in enumerate(
            zip(formats, step, fresh, providers, strict=True)
        ):
            source = specs[i].source
            if source is not None:
                self._open.append(LentRows(self._open[source]))
            elif i in sliding:
                window = specs[i].window
                self._open.append(SlidingRows(window, format, shared[format], scales, new, device, provider))
            else:
                self._open.append(LayerRows(format.new(capacity, device), scales, new, device, provider))
        self._sliding = [layer for layer in self._open if isinstance(layer, SlidingRows)]

    def open(self, layer: int) -> LayerRows | SlidingRows | LentRows:
        return self._open[layer]

    def before_step(self, past: int, rows: int = 1) -> None:
        for layer in self._sliding:
            layer.before_step(past)

    @property
    def earliest(self) -> int:
        return max((layer.earliest for layer in self._sliding), default=0)

    def truncate(self, rows: int) -> None:
        for layer in self._sliding:
            layer.truncate(rows)

    def fixed_rows(self) -> list[KV] | None:
        return None if self._sliding else [layer.view(0) for layer in self._open]

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self._open) + self._other_bytes


class LayerRows(PresentLayer):
    """Opening is free: the layer is always present. `fresh` is None if dense graphs write directly into the
    cache.
    """

    def __init__(
        self,
        rows: StoredRows,
        step: FreshRows,
        fresh: FreshRows | None,
        device: Device,
        provider: AttentionProvider,
    ) -> None:
        self._device = device
        self._rows = rows
        self._tensors = rows.view(0).tensors
        self._step = step.rows(0, 1)
        self._fresh = fresh
        self._provider = provider

    def target(self, rows: Rows) -> dict[str, Tensor]:
        if rows.at is not None:
            return self._step
        if self._fresh is not None:
            return self._fresh.rows(rows.start, rows.stop)
        return {name: tensor[rows.start : rows.stop] for name, tensor in self._tensors.items()}

    def commit(self, rows: Rows) -> None:
        if rows.at is not None:
            append_rows(self._provider, self._step["k"], self._step.get("v"), rows.at, self.view(rows.at))
        elif self._fresh is not None:
            new = self._fresh.rows(rows.start, rows.stop)
            append_rows(self._provider, new["k"], new.get("v"), rows.start, self.view(rows.stop))

    def uncommitted(self, rows: Rows) -> dict[str, Tensor] | None:
        return self._step if rows.at is not None else None

    def restore(self, arrays: dict[str, NDArray[Any]], first: int) -> None:
        for name, rows in arrays.items():
            self._device.upload(rows, self._tensors[name][first : first + len(rows)])

    @property
    def nbytes(self) -> int:
        return self._rows.nbytes

    def view(self, length: int | Tensor) -> KV:
        return self._rows.view(length)
