"""Host arithmetic of prefill: which rows run when."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from h2o_runtime.policies.prefill.h2o import ColumnSum
from h2o_runtime.schedule import Span, logical_batches, spans, tail_start

lengths = st.integers(0, 300)
positive = st.integers(1, 80)


def test_spans_by_hand() -> None:
    assert list(spans(10, 4)) == [Span(0, 4), Span(4, 8), Span(8, 10)]
    assert list(spans(8, 4)) == [Span(0, 4), Span(4, 8)]
    assert list(spans(3, 4)) == [Span(0, 3)]
    assert list(spans(10, 4, start=5)) == [Span(5, 9), Span(9, 10)]
    assert list(spans(0, 4)) == []
    assert list(spans(5, 4, start=5)) == []
    assert len(Span(3, 7)) == 4


def test_logical_batches_by_hand() -> None:
    # 10 tokens a batch hold three whole chunks of 3.
    assert list(logical_batches(20, 10, 3)) == [Span(0, 9), Span(9, 18), Span(18, 20)]
    assert list(logical_batches(20, 3, 3))[:2] == [Span(0, 3), Span(3, 6)]
    assert list(logical_batches(20, 10, 3, begun=2)) == [Span(0, 7), Span(7, 16), Span(16, 20)]
    assert list(logical_batches(0, 10, 3, begun=2)) == []
    policy = ColumnSum(batch_size=10, chunk_size=3, local=1, heavy=1)
    assert (policy.batch_rows(100), policy.batch_rows(5)) == (9, 5)


def test_tail_by_hand() -> None:
    assert tail_start(100, 30) == 70
    assert tail_start(100, 100) == 0
    assert tail_start(20, 30) == 0
    assert tail_start(20, 0) == 20
    # Chunks of 50 are cut into tiles of 20, 20 and 10 rows.
    assert tail_start(100, 30, 50, 20) == 70
    assert tail_start(100, 31, 50, 20) == 50
    assert tail_start(100, 5, 50, 20) == 90
    assert tail_start(100, 0, 50, 20) == 100


@given(n=lengths, size=positive, start=lengths)
def test_spans_cover_every_row_once_in_order(n: int, size: int, start: int) -> None:
    pieces = list(spans(n, size, start))
    rows = [row for piece in pieces for row in range(piece.start, piece.stop)]
    assert rows == list(range(start, n))
    assert all(len(piece) == size for piece in pieces[:-1])
    assert all(0 < len(piece) <= size for piece in pieces)


@given(n=lengths, chunk=positive, extra=st.integers(0, 200))
def test_logical_batches_hold_whole_chunks_and_stay_within_the_batch(n: int, chunk: int, extra: int) -> None:
    batch = chunk + extra
    pieces = list(logical_batches(n, batch, chunk))
    assert [row for piece in pieces for row in range(piece.start, piece.stop)] == list(range(n))
    assert all(piece.start % chunk == 0 and len(piece) <= batch for piece in pieces)
    assert all(piece.stop % chunk == 0 for piece in pieces[:-1])
    assert all(len(piece) <= min(batch // chunk * chunk, n) for piece in pieces)


@given(n=lengths, tail=lengths)
def test_the_tail_is_the_last_rows(n: int, tail: int) -> None:
    assert len(range(tail_start(n, tail), n)) == min(n, tail)
