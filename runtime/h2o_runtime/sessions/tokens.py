"""The tokens of a session, and their positions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]


class TokenRows:
    """The tokens whose keys and values are kept, one a row of the cache.

    tokens     int64 [cap], of which the first `length` are valid
    positions  int64 [cap]: where in the text each stood. Rows are counted as they are kept, positions as they
               were read
    generated  bool [cap], true where decode put the token, not a prompt
    """

    def __init__(self, capacity: int) -> None:
        self.tokens: IntArray = np.zeros(capacity, np.int64)
        self.positions: IntArray = np.zeros(capacity, np.int64)
        self.generated: NDArray[np.bool_] = np.zeros(capacity, np.bool_)
        self.length = 0

    @property
    def known(self) -> IntArray:
        """The valid tokens, int64 [length]."""
        return self.tokens[: self.length]

    @property
    def next_position(self) -> int:
        """The position of the next token in the text."""
        return int(self.positions[self.length - 1]) + 1 if self.length else 0

    def append(self, tokens: IntArray | Sequence[int], generated: bool) -> None:
        """Record tokens whose keys and values every layer has written."""
        begin, end = self.length, self.length + len(tokens)
        first = self.next_position
        self.tokens[begin:end] = tokens
        self.positions[begin:end] = np.arange(first, first + len(tokens))
        self.generated[begin:end] = generated
        self.length = end

    def truncate(self, length: int) -> None:
        """Drop every token from row `length` on."""
        self.length = min(self.length, length)
