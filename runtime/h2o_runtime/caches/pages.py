"""Pages of rows: a pool that counts the users of each page, and a sequence's table of pages."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


class PagePool:
    """Page p is the rows from p * page_rows on of every array.

    arrays  the arrays of the rows, each [pages * page_rows, …]
    counts  int32 [pages]: the number of sequences that use a page, including waiting ones. 0: it is free
    free    the free pages, as a heap: the lowest is allocated first, so that a single sequence is contiguous
    """

    def __init__(self, pages: int, page_rows: int, arrays: Sequence[NDArray[Any]]) -> None:
        self.page_rows = page_rows
        self.arrays = arrays
        self.counts: NDArray[np.int32] = np.zeros(pages, np.int32)
        self.free = list(range(pages))

    @property
    def page_bytes(self) -> int:
        return sum(array[: self.page_rows].nbytes for array in self.arrays)

    def take(self) -> int:
        assert self.free, "whoever drives sequences makes room before one grows"
        page = heapq.heappop(self.free)
        self.counts[page] = 1
        return page

    def share(self, pages: NDArray[np.int32]) -> None:
        """One more sequence uses these pages, each of them once."""
        self.counts[pages] += 1

    def give_back(self, pages: NDArray[np.int32]) -> None:
        """One sequence fewer uses them."""
        self.counts[pages] -= 1
        for page in pages[self.counts[pages] == 0]:
            heapq.heappush(self.free, int(page))

    def copy(self, source: int, target: int, rows: int) -> None:
        """The first `rows` rows of a page, in every array."""
        source, target = source * self.page_rows, target * self.page_rows
        for array in self.arrays:
            array[target : target + rows] = array[source : source + rows]


class PageTable:
    """The pages of the current sequence: row i lies at table[i // page_rows] * page_rows + i % page_rows.

    table  int32 [pages of the capacity]: -1 behind the first `used`
    """

    def __init__(self, pool: PagePool, capacity: int) -> None:
        self.pool = pool
        self.table: NDArray[np.int32] = np.full(-(-capacity // pool.page_rows), -1, np.int32)
        self.used = 0

    def reach(self, start: int, stop: int) -> None:
        """Rows start … stop - 1 are about to be written: provide pages for them that no other sequence uses.

        If a page must be copied, its rows before `start` are kept.
        """
        size, pool = self.pool.page_rows, self.pool
        for index in range(start // size, min(self.used, -(-stop // size))):
            if pool.counts[self.table[index]] > 1:
                self._own(index, max(start - index * size, 0))
        while self.used * size < stop:
            self.table[self.used] = pool.take()
            self.used += 1

    def missing(self, start: int, stop: int, waiting: bool = False) -> int:
        """How many pages `reach` would take. waiting: once `retain` was called for all rows."""
        size = self.pool.page_rows
        reached = self.table[start // size : min(self.used, -(-stop // size))]
        shared = len(reached) if waiting else int((self.pool.counts[reached] > 1).sum())
        return shared + max(-(-stop // size) - self.used, 0)

    def move_out(self) -> list[NDArray[Any]]:
        """Give all pages back → copies of them, one of every array of the pool."""
        pool, pages = self.pool, self.table[: self.used]
        copies = [array.reshape(-1, pool.page_rows, *array.shape[1:])[pages] for array in pool.arrays]
        self.truncate(0)
        return copies

    def move_in(self, copies: Sequence[NDArray[Any]]) -> None:
        """Have pages again, which hold these copies."""
        pool = self.pool
        self.reach(0, len(copies[0]) * pool.page_rows)
        for array, copy in zip(pool.arrays, copies, strict=True):
            array.reshape(-1, pool.page_rows, *array.shape[1:])[self.table[: self.used]] = copy

    def truncate(self, rows: int) -> None:
        """Free the pages beyond the first `rows` rows."""
        needed = min(-(-rows // self.pool.page_rows), self.used)
        self.pool.give_back(self.table[needed : self.used])
        self.table[needed : self.used] = -1
        self.used = needed

    def retain(self, rows: int) -> NDArray[np.int32]:
        """The pages of the first `rows` rows; none is written until the caller frees them."""
        pages = self.table[: -(-rows // self.pool.page_rows)].copy()
        self.pool.share(pages)
        return pages

    def become(self, pages: NDArray[np.int32]) -> None:
        """Use exactly these pages, which others use too."""
        self.pool.share(pages)
        self.truncate(0)
        self.used = len(pages)
        self.table[: self.used] = pages

    def _own(self, index: int, rows: int) -> None:
        shared = self.table[index : index + 1]
        page = self.pool.take()
        self.pool.copy(int(shared[0]), page, rows)
        self.pool.give_back(shared)
        self.table[index] = page
