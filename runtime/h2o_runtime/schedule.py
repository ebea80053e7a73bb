"""The order of rows in a prefill: arithmetic on the host, independent of any device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

BLOCK = 64  # rows that kernels of dense attention compute together


@dataclass(frozen=True)
class Span:
    """Rows start … stop - 1."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


def spans(n: int, size: int, start: int = 0) -> Iterator[Span]:
    """Split rows start … n - 1 into runs of `size`; the last may be shorter."""
    for begin in range(start, n, size):
        yield Span(begin, min(begin + size, n))


def logical_batches(n: int, batch_size: int, chunk_size: int, begun: int = 0) -> Iterator[Span]:
    """Spans of whole chunks, as many as fit the logical batch: each is one launch of Phase 1.

    begun: rows of the first chunk that lie before row 0
    """
    for batch in spans(n, batch_size // chunk_size * chunk_size, start=-begun if n else 0):
        yield Span(max(batch.start, 0), batch.stop)


def rows_of_chunks(rows: int, chunk_size: int) -> int:
    """As many whole chunks as fit into `rows` rows, at least one."""
    return max(rows // chunk_size, 1) * chunk_size


def dense_cuts(n: int, batch_size: int, rows: int) -> list[int]:
    """Rows at which n rows, which attend in batches, may be cut into pieces of about `rows` rows.

    Each row attends to the same keys in any case. But kernels process rows in blocks, and sum in another order if
    there are few rows. To keep results equal to the last bit, pieces begin with a block or a batch, and a piece is
    shorter only if its batch is.
    """
    if rows >= batch_size:
        size = rows // batch_size * batch_size
        return list(range(size, n, size))
    size = rows_of_chunks(rows, BLOCK)
    starts = [
        start
        for batch in spans(n, batch_size)
        for start in (batch.start, *range(batch.start + size, batch.stop - BLOCK + 1, size))
    ]
    return starts[1:]


def tail_start(n: int, dense_tail: int, chunk_size: int = 1, tile: int = 1) -> int:
    """First row of the dense tail in a call of n rows; n if there is none.

    The tail has at least `dense_tail` rows, and begins with a tile: each chunk is cut into tiles of so many rows.
    """
    start = max(n - dense_tail, 0)
    return start - start % chunk_size % tile if dense_tail else n
