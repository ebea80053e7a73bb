"""Layers stored on the host, in memory or in a mapped file; the device holds only those that are at work.

The layers take turns in a ring of buffers. While a layer is at work, earlier layers are stored and later ones
loaded, in one order of copies: a buffer's rows are stored when its layer is done, and only then the next
layer is loaded over them. If a step reads a layer in pages, only the selected pages are loaded, and nothing
is prefetched.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.attention.provider import AttentionProvider, append_rows
from h2o_runtime.caches.cache import Cache, KVStore, LayerStore, Rows
from h2o_runtime.components.options import option
from h2o_runtime.devices import Device, Tensor
from h2o_runtime.errors import ConfigError, OutputError
from h2o_runtime.kv import KV
from h2o_runtime.model_spec import ModelSpec

Array = NDArray[Any]


class HostRows:
    """layers[layer]: k and v by their names, each [cap, Hkv, d]."""

    def __init__(self, memory: NDArray[np.uint8], layers: int, row: tuple[int, int, int], dtype: Any) -> None:
        arrays = memory.view(dtype).reshape(layers, 2, *row)
        self.layers = [dict(zip("kv", layer, strict=True)) for layer in arrays]
        self.nbytes = arrays.nbytes

    def drop(self, rows: Array) -> None:
        """`rows` are not needed for a while."""


class MappedRows(HostRows):
    """In a private file: its name is removed once it is open, its space freed when the process ends."""

    def __init__(self, path: Path, layers: int, row: tuple[int, int, int], dtype: Any) -> None:
        """Raises OutputError if the file already exists or cannot be created, or if the disk is too small."""
        nbytes = 2 * layers * int(np.prod(row)) * np.dtype(dtype).itemsize
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                with suppress(OSError):
                    os.unlink(path)
                os.posix_fallocate(file, 0, nbytes)  # report a full disk now, not in the middle of a prompt
                self._map = mmap.mmap(file, nbytes)
            finally:
                os.close(file)
        except FileExistsError as error:
            raise OutputError(f"{path}: exists already: file must name a new one") from error
        except OSError as error:
            raise OutputError(
                f"{path}: no room for {nbytes / 2**20:,.0f} MiB of keys and values: {error.strerror}; give another "
                "file, or lower `context`"
            ) from error
        super().__init__(np.frombuffer(self._map, np.uint8), layers, row, dtype)
        self._begin = np.frombuffer(self._map, np.uint8).ctypes.data

    def drop(self, rows: Array) -> None:
        """Release its pages from this process; the system writes them back when it likes, and caches them
        while it can.
        """
        start = (rows.ctypes.data - self._begin) // mmap.PAGESIZE * mmap.PAGESIZE
        stop = rows.ctypes.data - self._begin + rows.nbytes
        self._map.madvise(mmap.MADV_DONTNEED, start, stop - start)


@dataclass(frozen=True)
class Offload(Cache):
    """Device memory is reserved for `buffers` layers of the whole context, host memory for all
    layers.
    """

    name: ClassVar[str] = "offload"
    title: ClassVar[str] = "layers on the host"

    buffers: int = option(2, "Layers that stay on the device.", least=1)
    file: str = option("", "New file for the rows, required on a CPU; it is removed when the process ends.")

    def new_store(
        self, model: ModelSpec, capacity: int, device: Device, providers: Sequence[AttentionProvider]
    ) -> KVStore:
        """Raises ConfigError on a CPU without a file, OutputError if the file cannot be created."""
        if device.name == "cpu" and not self.file:
            raise ConfigError(
                '`cache=offload` on a CPU needs a file for the rows: write "offload file=PATH", or use '
                "another cache",
                field="file",
            )
        row, dtype = (capacity, model.kv_heads, model.head_size), np.dtype(model.dtype)
        nbytes = 2 * model.layers * int(np.prod(row)) * dtype.itemsize
        host = (
            MappedRows(Path(self.file), model.layers, row, dtype)
            if self.file
            else HostRows(device.host_memory(nbytes), model.layers, row, dtype)
        )
        return OffloadStore(host, min(self.buffers, model.layers), device, providers[0])

    def store_bytes(self, model: ModelSpec, context: int) -> int:
        row = model.kv_heads * model.head_size * np.dtype(model.dtype).itemsize
        return 2 * min(self.buffers, model.layers) * context * row


class Buffer:
    """One buffer of the ring. After the copies of `mark`, its first `rows` rows are those of `layer`.

    Behind them it may hold pages of that layer for the current step.
    """

    def __init__(self, like: dict[str, Any], device: Device) -> None:
        self.tensors = {name: device.empty(array.shape, array.dtype) for name, array in like.items()}
        self.layer, self.rows = -1, 0
        self.mark: Any = 0


class OffloadStore(KVStore):
    recordable = False  # the amount copied changes from step to step

    def __init__(self, host: HostRows, buffers: int, device: Device, provider: AttentionProvider) -> None:
        self.host = host
        self.ring = [Buffer(host.layers[0], device) for _ in range(buffers)]
        row = host.layers[0]["k"][:1]
        self.step = {name: device.empty(row.shape, row.dtype) for name in "kv"}
        self.device, self.provider = device, provider
        self.in_pages = frozenset[int]()
        self.transfers = device.transfers(host.drop)
        self.past = 0  # rows before the step's own
        self._layers = [_Layer(self, layer) for layer in range(len(host.layers))]

    def open(self, layer: int) -> _Layer:
        return self._layers[layer]

    def read_in_pages(self, layers: frozenset[int]) -> None:
        self.in_pages = layers

    def before_step(self, past: int, rows: int = 1) -> None:
        self.past = past
        for layer in range(len(self.ring)):
            self.prefetch_step(layer, past)

    def prefetch_step(self, layer: int, past: int) -> None:
        """Load what a step certainly reads of a layer."""
        if layer not in self.in_pages:
            self.prefetch(layer, past)

    def prefetch(self, layer: int, rows: int) -> None:
        """Load the first `rows` rows of a layer into its buffer, which the device has finished with."""
        buffer = self.ring[layer % len(self.ring)]
        have = buffer.rows if buffer.layer == layer else 0
        if have < rows:
            self.transfers.follow()
            for name, source in self.host.layers[layer].items():
                self.transfers.load(source[have:rows], buffer.tensors[name][have:rows])
            buffer.mark = self.transfers.mark()
        buffer.layer, buffer.rows = layer, max(have, rows)

    def claim(self, layer: int, rows: int) -> Buffer:
        """The layer's buffer with its first `rows` rows, for the device to read and to append to."""
        self.prefetch(layer, rows)
        buffer = self.ring[layer % len(self.ring)]
        buffer.rows = rows
        self.transfers.wait(buffer.mark)
        return buffer

    def claim_step(self, layer: int) -> Buffer:
        """The layer's buffer with what a step certainly reads of it."""
        buffer = self.ring[layer % len(self.ring)]
        if layer not in self.in_pages:
            return self.claim(layer, self.past)
        if buffer.layer != layer:
            buffer.layer, buffer.rows = layer, 0
        self.transfers.wait(buffer.mark)
        return buffer

    def fetch(self, layer: int, pages: Tensor, page_rows: int) -> None:
        """Make the device wait for the pages of a layer that a step has requested."""
        buffer = self.ring[layer % len(self.ring)]
        if buffer.rows >= self.past:
            return
        self.transfers.follow()
        runs = _runs(np.unique(self.device.download(pages)), page_rows, buffer.rows, self.past)
        for name, source in self.host.layers[layer].items():
            self.transfers.load(source, buffer.tensors[name], runs)
        buffer.mark = self.transfers.mark()
        self.transfers.wait(buffer.mark)

    def done(self, layer: int, start: int, stop: int, step: bool) -> None:
        """The device was given all work on a layer with the new rows start … stop - 1."""
        buffer = self.ring[layer % len(self.ring)]
        self.transfers.follow()
        for name, target in self.host.layers[layer].items():
            self.transfers.store(buffer.tensors[name][start:stop], target[start:stop])
        if buffer.rows >= start:
            buffer.rows = stop
        buffer.mark = self.transfers.mark()
        following = layer + len(self.ring)
        if following >= len(self.host.layers):
            self.prefetch_step(layer % len(self.ring), stop)  # of the next step
        elif step:
            self.prefetch_step(following, start)
        else:
            self.prefetch(following, start)

    def report(self) -> dict[str, Any]:
        moved = self.transfers
        overlap = max(0.0, 1 - moved.waited / moved.busy) if moved.busy and moved.waited is not None else None
        return {
            "host_bytes": self.host.nbytes,
            "device_bytes": self.nbytes,
            "loaded_bytes": moved.loaded,
            "stored_bytes": moved.stored,
            "copy_seconds": moved.busy,
            "waited_seconds": moved.waited,
            "overlap": overlap,
        }

    @property
    def nbytes(self) -> int:
        return sum(int(array.nbytes) for buffer in self.ring for array in buffer.tensors.values())


class _Layer(LayerStore):
    """begin, end: the rows added since it was opened; step: whether a step wrote them."""

    def __init__(self, store: OffloadStore, layer: int) -> None:
        self._store, self._layer = store, layer
        self._begin = self._end = 0
        self._step = False
        self._buffer: Buffer | None = None

    def __enter__(self) -> _Layer:
        self._begin = self._end = 0
        self._buffer = None
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._end and kind is None:
            self._store.done(self._layer, self._begin, self._end, self._step)

    def target(self, rows: Rows) -> dict[str, Tensor]:
        if rows.at is not None:
            return self._store.step
        if self._buffer is None:
            self._begin, self._step = rows.start, False
            self._buffer = self._store.claim(self._layer, rows.start)
        self._end = max(self._end, rows.stop)
        return {name: array[rows.start : rows.stop] for name, array in self._buffer.tensors.items()}

    def commit(self, rows: Rows) -> None:
        if rows.at is not None:
            past, step = self._store.past, self._store.step
            self._buffer = self._store.claim_step(self._layer)
            self._begin, self._end, self._step = past, past + 1, True
            append_rows(self._store.provider, step["k"], step["v"], rows.at, self.view(past + 1))

    def fetch(self, pages: Tensor, page_rows: int) -> None:
        if self._layer in self._store.in_pages:
            self._store.fetch(self._layer, pages, page_rows)

    def view(self, length: int | Tensor) -> KV:
        if self._buffer is None:
            assert isinstance(length, int), "a step writes its row first"
            self._buffer = self._store.claim(self._layer, length)
        return KV(**self._buffer.tensors, length=length)


def _runs(pages: NDArray[np.int32], page_rows: int, start: int, stop: int) -> list[tuple[int, int]]:
    """The rows among start … stop - 1 on these pages, which rise, as runs; -1 is no page."""
    pages = pages[pages >= 0]
    begins = np.flatnonzero(np.diff(pages, prepend=-2) > 1)
    lasts = np.append(begins[1:], len(pages))[: len(begins)] - 1
    firsts, ends = (pages[begins] * page_rows).clip(start), ((pages[lasts] + 1) * page_rows).clip(max=stop)
    runs = zip(firsts.tolist(), ends.tolist(), strict=True)
    return [(first, end) for first, end in runs if first < end]
