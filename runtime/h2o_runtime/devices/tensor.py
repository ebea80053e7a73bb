"""The type of an array on a device, and where it lies in memory."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

# A C-contiguous array on a device: a NumPy array on the host, an Array of `h2o_plugins._cuda` on a GPU.
#
# Both have shape, dtype, nbytes and reshape, and give views of rows: array[start:stop], array[index].
Tensor: TypeAlias = Any

ALIGNMENT = 256  # bytes: alignment of new arrays on a GPU; TensorRT needs it for all inputs and outputs


def address_of(array: Any) -> int:
    """The address of the contents of a NumPy array or of a GPU's."""
    address: int = array.__array_interface__["data"][0] if isinstance(array, np.ndarray) else array.address
    return address
