"""What the model's head read of a session's last rows, for a layer that drafts tokens from it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class HiddenRows:
    """Of the rows that the last call of the head computed, at most `most`."""

    def __init__(self, most: int, size: int) -> None:
        self._kept = np.zeros((most, size), np.float32)
        self._first = self._stop = 0

    def put(self, first: int, rows: NDArray[np.float32]) -> None:
        """They are rows `first` … of the session, [n, D]."""
        self._kept[: len(rows)] = rows
        self._first, self._stop = first, first + len(rows)

    def of(self, row: int) -> NDArray[np.float32] | None:
        """[D]; None if it is not known."""
        return self._kept[row - self._first] if self._first <= row < self._stop else None

    def truncate(self, rows: int) -> None:
        """Rows from `rows` on are of another text from now on."""
        self._stop = min(self._stop, rows)

    @property
    def first(self) -> int:
        """The first row that is known, if any."""
        return self._first
