"""The type of an array on a device."""

from __future__ import annotations

from typing import Any, TypeAlias

# A C-contiguous array on a device: a NumPy array on the host, an Array of `h2o_plugins._cuda` on a GPU.
#
# Both have shape, dtype, nbytes and reshape, and give views of rows: array[start:stop], array[index].
Tensor: TypeAlias = Any
