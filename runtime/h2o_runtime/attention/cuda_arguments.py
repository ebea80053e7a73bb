"""What CUDA kernels take for a cache and a state, integers that they read on the device, and their workspace."""

from __future__ import annotations

import numpy as np

from h2o_runtime.attention.base import PartialSoftmax
from h2o_runtime.devices.cuda import CudaDevice
from h2o_runtime.devices.cuda_array import CudaArray
from h2o_runtime.kv import KV


class CudaScratch:
    """Device memory that one call after another uses, on the device's attention lane.

    A step has a workspace of its own: maybe it is recorded, and keeps its address.
    """

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._integers = device.empty((2,), np.int64)  # read by the kernel right behind
        self._workspace = device.empty((0,), np.uint8)
        self._step_workspace = device.empty((0,), np.uint8)

    def length(self, kv: KV) -> int:
        """Where the device reads how many rows there are."""
        if not isinstance(kv.length, int):
            return int(kv.length.address)
        self._device.lanes.attention.write_integers(self._integers.address, [kv.length])
        return int(self._integers.address)

    def new_rows(self, kv: KV, start: int | CudaArray) -> dict[str, int]:
        """Where the device reads which rows are new, and how many they are at most."""
        if not isinstance(start, int):  # of a step, maybe a recorded one
            return {"start": start.address, "length": self.length(kv), "most_rows": 1}
        assert isinstance(kv.length, int)
        first = self._integers.address
        self._device.lanes.attention.write_integers(first, [start, kv.length])
        return {"start": first, "length": first + 8, "most_rows": kv.length - start}

    def reserve_for(self, kv: KV, nbytes: int) -> dict[str, int]:
        """Workspace of a prompt or of a step, whichever reads the cache."""
        return self.reserve(nbytes) if isinstance(kv.length, int) else self.reserve_step(nbytes)

    def reserve(self, nbytes: int) -> dict[str, int]:
        if self._workspace.nbytes < nbytes:
            self._workspace = self._device.empty((0,), np.uint8)  # the old one goes before the new one comes
            self._workspace = self._device.empty((nbytes,), np.uint8)
        return _workspace_of(self._workspace)

    def reserve_step(self, nbytes: int) -> dict[str, int]:
        if self._step_workspace.nbytes < nbytes:
            self._step_workspace = self._device.empty((nbytes,), np.uint8)
        return _workspace_of(self._step_workspace)


def _workspace_of(memory: CudaArray) -> dict[str, int]:
    return {"workspace": memory.address, "workspace_bytes": memory.nbytes}


def key_addresses(kv: KV) -> dict[str, int]:
    """A cache as the kernels take it that read keys alone."""
    k_scales, v_scales = kv.scales or (None, None)
    return {
        "k_cache": kv.k.address,
        "capacity": len(kv.k),
        "pages": address_or_null(kv.pages),
        "page_rows": kv.page_rows,
        "k_scales": address_or_null(k_scales),
        "v_scales": address_or_null(v_scales),
        "item_bytes": kv.k.dtype.itemsize,
    }


def cache_addresses(kv: KV) -> dict[str, int]:
    return {"v_cache": kv.v.address, **key_addresses(kv)}


def state_addresses(state: PartialSoftmax) -> dict[str, int]:
    return {"o": state.o.address, "m": state.m.address, "l": state.l.address}


def address_or_null(array: CudaArray | None) -> int:
    return 0 if array is None else array.address
