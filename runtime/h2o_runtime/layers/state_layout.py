"""What the state of a layer is made of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np


@dataclass(frozen=True)
class ArrayShape:
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def rows(self, count: int) -> ArrayShape:
        """So many of them below each other."""
        return ArrayShape((count, *self.shape), self.dtype)


@dataclass(frozen=True)
class Tail:
    """The last rows of an output of the dense graph, which the next call reads."""

    output: str
    rows: int


@dataclass(frozen=True)
class StateLayout:
    """A layer's state: arrays, which its kind's operator updates, and tails, which its dense graph reads.

    new     what the dense graph gives for a token besides queries and the gate, by the outputs' names
    arrays  by name
    tails   by the name of the dense graph's input; an output has one tail at most
    """

    new: Mapping[str, ArrayShape]
    arrays: Mapping[str, ArrayShape] = field(default_factory=dict)
    tails: Mapping[str, Tail] = field(default_factory=dict)

    @property
    def state(self) -> dict[str, ArrayShape]:
        """All that is kept between tokens."""
        tails = {name: self.new[tail.output].rows(tail.rows) for name, tail in self.tails.items()}
        return {**tails, **self.arrays}

    def before(self, output: str) -> int:
        """Rows in front of an output's new ones: the tail that its next one is cut from, too."""
        return self._rows_before.get(output, 0)

    @cached_property
    def _rows_before(self) -> dict[str, int]:
        return {tail.output: tail.rows for tail in self.tails.values()}

    def room(self, rows: int) -> dict[str, ArrayShape]:
        """Buffers of `new` for so many tokens, with those in front."""
        return {name: row.rows(self.before(name) + rows) for name, row in self.new.items()}
