"""The double of `h2o_plugins._cuda.Array`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


class Array:
    def __init__(self, address: int, shape: tuple[int, ...], dtype: np.dtype[Any], owner: object) -> None:
        self.address, self.shape, self.dtype = address, shape, dtype
        self._owner = owner

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def __getitem__(self, rows: int | slice) -> Array:
        row_bytes = math.prod(self.shape[1:]) * self.dtype.itemsize
        chosen = range(len(self))[rows]
        first, shape = (
            (chosen, self.shape[1:])
            if isinstance(chosen, int)
            else (chosen.start, (len(chosen), *self.shape[1:]))
        )
        return Array(self.address + first * row_bytes, shape, self.dtype, self._owner)

    def reshape(self, *shape: int) -> Array:
        assert math.prod(shape) == math.prod(self.shape)
        return Array(self.address, shape, self.dtype, self._owner)
