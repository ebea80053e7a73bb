"""Where arrays lie in memory."""

from __future__ import annotations

from typing import Any

import numpy as np

ALIGNMENT = 256  # bytes: alignment of new arrays on a GPU; TensorRT needs it for all inputs and outputs


def address_of(array: Any) -> int:
    """The address of the contents of a NumPy array or of a GPU's."""
    address: int = array.__array_interface__["data"][0] if isinstance(array, np.ndarray) else array.address
    return address
