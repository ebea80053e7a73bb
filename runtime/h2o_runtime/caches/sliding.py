"""Rows of a layer with a window: only the last ones, so that memory does not grow with the text.

Row i is at place i - first; when the room is full, the last rows move to its front. Kernels do not need to
know: a window counts back from the newest row. A prompt is read in parts, in a buffer that all such layers
share. In host memory only: on a GPU such a layer has room for the whole context.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.attention.provider import AttentionProvider, append_rows
from h2o_runtime.caches.cache import LayerStore, Rows
from h2o_runtime.caches.stored import FreshRows, RowFormat, StoredRows
from h2o_runtime.devices import Device, Tensor
from h2o_runtime.kv import KV
from h2o_runtime.layer_spec import LayerSpec
from h2o_runtime.model_spec import ModelSpec

AT_ONCE = 4096  # rows of a prompt: a logical batch
LEAST_SPARE = 16
SPARE_SHARE = 40  # this fraction of a window is kept in addition


def spare_rows(window: int) -> int:
    """Rows kept in addition to the window: a text can be rolled back by this many."""
    return max(window // SPARE_SHARE, LEAST_SPARE)


def room(window: int) -> int:
    """Rows of a layer. They move to the front once in as many steps as there are spare rows."""
    return window + 2 * spare_rows(window)


def slides(spec: LayerSpec, capacity: int) -> bool:
    """Whether a layer has less room than the whole context."""
    return bool(spec.window) and spec.has_rows and not spec.lends and room(spec.window) < capacity


def sliding_bytes(model: ModelSpec, formats: Sequence[RowFormat], capacity: int) -> int:
    """The bytes of the sliding layers, and of their shared buffer."""
    stored = [
        (spec.window, format)
        for spec, format in zip(model.each_layer, formats, strict=True)
        if slides(spec, capacity)
    ]
    rows = shared_rows([window for window, _ in stored], capacity)
    shared = sum(rows * format.row_bytes for format in {format for _, format in stored})
    return shared + sum(room(window) * format.row_bytes for window, format in stored)


def shared_rows(windows: Sequence[int], capacity: int) -> int:
    """Room for a part of a prompt, and for the earlier rows that it sees."""
    return max(map(room, windows), default=0) + min(AT_ONCE, capacity)


class SlidingRows(LayerStore):
    """One layer. `shared` is at work while a prompt is read; `fresh` is where rows are before they are converted.

    first  row that lies at place 0
    """

    restores = in_turns = True

    def __init__(
        self,
        window: int,
        format: RowFormat,
        shared: StoredRows,
        step: FreshRows,
        fresh: FreshRows | None,
        device: Device,
        provider: AttentionProvider,
    ) -> None:
        self._window, self._spare, self._room = window, spare_rows(window), room(window)
        self._own, self._shared = format.new(self._room, device), shared
        self._step, self._fresh = step.rows(0, 1), fresh
        self._provider = provider
        self.first = 0
        self._loaded: tuple[int, int] | None = None  # range of rows of this layer in `shared`

    def __enter__(self) -> SlidingRows:
        self._loaded = None
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Keep a prompt's last rows; if it was interrupted, none."""
        if self._loaded is not None and kind is None:
            first, stop = self._loaded
            keep = max(first, stop - self._lasting)
            _copy(self._shared, keep - first, self._own, 0, stop - keep)
            self.first = keep
        self._loaded = None

    @property
    def _lasting(self) -> int:
        """Rows that stay when others go: those that a token sees before itself, and those for a rollback."""
        return self._window - 1 + self._spare

    @property
    def earliest(self) -> int:
        """The earliest row from which a text can continue, given the last row."""
        return self.first + self._window - 1 if self.first else 0

    def truncate(self, rows: int) -> None:
        """Rows from `rows` on are no longer needed."""
        self.first = min(self.first, rows)

    def before_step(self, past: int) -> None:
        """Make room for row `past`."""
        if past - self.first >= self._room:
            first = past - self._lasting
            _copy(self._own, first - self.first, self._own, 0, past - first)
            self.first = first

    def target(self, rows: Rows) -> dict[str, Tensor]:
        if rows.at is not None:
            return self._step
        first = self._make_room(rows)
        if self._fresh is not None:
            return self._fresh.rows(0, rows.stop - rows.start)
        places = slice(rows.start - first, rows.stop - first)
        return {name: tensor[places] for name, tensor in self._shared.view(0).tensors.items()}

    def _make_room(self, rows: Rows) -> int:
        """Provide places for the rows in `shared`, after the rows that they see. Returns the row at the first
        place.
        """
        if self._loaded is None:
            first = max(self.first, rows.start - self._lasting)
            _copy(self._own, first - self.first, self._shared, 0, rows.start - first)
            self._loaded = first, rows.stop
        first, stop = self._loaded
        if rows.stop - first > len(self._shared.k):
            keep = max(first, rows.start - self._lasting)
            _copy(self._shared, keep - first, self._shared, 0, rows.start - keep)
            first = keep
        self._loaded = first, max(stop, rows.stop)
        return first

    def commit(self, rows: Rows) -> None:
        if rows.at is not None:
            at = int(rows.at[0])
            kv = self.view(at + 1)
            append_rows(self._provider, self._step["k"], self._step.get("v"), at - self.first, kv)
        elif self._fresh is not None:
            new = self._fresh.rows(0, rows.stop - rows.start)
            assert self._loaded is not None, "a target was asked for"
            kv = self.view(rows.stop)
            append_rows(self._provider, new["k"], new.get("v"), rows.start - self._loaded[0], kv)

    def uncommitted(self, rows: Rows) -> dict[str, Tensor] | None:
        return self._step if rows.at is not None else None

    def view(self, length: int | Tensor) -> KV:
        assert isinstance(length, int), "there is no recorded step on the host"
        if self._loaded is not None:
            return self._shared.view(length - self._loaded[0])
        return self._own.view(length - self.first)

    def stored_rows(self, first: int, length: int) -> dict[str, Tensor]:
        places = slice(first - self.first, length - self.first)
        return {name: tensor[places] for name, tensor in self._own.view(0).tensors.items()}

    def restore(self, arrays: dict[str, NDArray[Any]], first: int) -> None:
        stop = first + len(arrays["k"])
        keep = max(first, stop - self._lasting)
        for name, target in self._own.view(0).tensors.items():
            target[: stop - keep] = arrays[name][keep - first :]
        self.first = keep

    @property
    def nbytes(self) -> int:
        return self._own.nbytes


def _copy(source: StoredRows, begin: int, target: StoredRows, at: int, count: int) -> None:
    """Copy rows between places of two arrays, which may be the same."""
    to = target.view(0).tensors
    for name, tensor in source.view(0).tensors.items():
        if count:
            np.copyto(to[name][at : at + count], tensor[begin : begin + count])
