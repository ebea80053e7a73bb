"""Keys and values of all layers in host memory, or in a mapped file."""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.errors import OutputError

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
