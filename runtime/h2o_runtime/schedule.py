"""Which rows run when: the host arithmetic of prefill, free of any device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """Rows start … stop - 1."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


def spans(n: int, size: int, start: int = 0) -> Iterator[Span]:
    """Cut rows start … n - 1 into pieces of `size`; the last may be shorter."""
    for begin in range(start, n, size):
        yield Span(begin, min(begin + size, n))


def logical_batches(n: int, batch_size: int, chunk_size: int) -> Iterator[Span]:
    """Spans of whole chunks, as many as fit the logical batch: each is one launch of Phase 1."""
    return spans(n, batch_size // chunk_size * chunk_size)


def tail_start(n: int, dense_tail: int) -> int:
    """First row of the dense tail in a call of n rows."""
    return max(n - dense_tail, 0)
