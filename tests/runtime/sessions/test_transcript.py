"""Texts of conversations keep the tokens that were read and generated."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from h2o_runtime.sessions.transcript import Transcript, Transcripts


def ids(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


def found(known: Transcripts, text: str) -> list[tuple[int, list[int]]]:
    return [(characters, begun.tolist()) for characters, begun in known.beginnings(text)]


def test_a_text_goes_on_from_any_turn_of_a_conversation() -> None:
    known = Transcripts()
    known.answered("ask", ids(1, 2), "ok", ids(3))
    last = known.answered("askok|why", ids(1, 2, 3, 9, 4), "so", ids(5, 6))
    assert last.turns == ((3, 5), (7, 11))
    assert found(known, "askok|whyso|more") == [(11, [1, 2, 3, 9, 4, 5, 6])]
    assert found(known, "askok|other") == [(5, [1, 2, 3])]
    assert found(known, "as") == found(known, "other") == []
    # Another answer to the second question, beside the first one.
    known.answered("askok|why", ids(1, 2, 3, 9, 4), "no", ids(8))
    assert [characters for characters, _ in found(known, "askok|whyno|")] == [11, 5]
    assert [characters for characters, _ in found(known, "askok|whyso|")] == [11, 5]


def test_a_turn_that_was_read_with_other_tokens_is_no_turn_of_it() -> None:
    known = Transcripts()
    known.answered("ask", ids(1, 2), "ok", ids(3))
    assert known.answered("askok|", ids(1, 7, 9), "so", ids(5)).turns == ((4, 8),)
    assert len(found(known, "askok|so")) == 2


def test_the_oldest_make_room() -> None:
    one = Transcript("a" * 100, ids(*range(50)), ((50, 100),))
    known = Transcripts(most_bytes=2 * one.nbytes + 10)
    for letter in "abc":
        known.answered(letter * 50, ids(*range(25)), letter * 50, ids(*range(25)))
    assert [bool(found(known, letter * 100)) for letter in "abc"] == [False, True, True]
    known.answered("d" * 1000, ids(1), "", ids(2))  # the newest stays, whatever it takes
    assert found(known, "d" * 1000)


def test_it_is_cut_where_a_session_is_cut() -> None:
    both = Transcript("abcdef", ids(1, 2, 3, 4, 5), ((2, 3), (5, 6)))
    assert both.until(4) is both  # the last token of an answer need not be in the cache
    first = both.until(3)
    assert first is not None
    assert (first.text, first.ids.tolist(), first.turns) == ("abc", [1, 2], ((2, 3),))
    assert both.until(0) is None


def test_what_is_written_is_read() -> None:
    one = Transcript("naïve 😀\n", ids(1, 2, 3), ((1, 2), (3, 8)))
    again = Transcript.read(one.written())
    assert (again.text, again.ids.tolist(), again.turns) == (one.text, [1, 2, 3], one.turns)
    good = json.loads(one.written())
    for change in (
        {"turns": []},
        {"turns": [(3, 7)]},
        {"turns": [(3, 8), (3, 8)]},
        {"turns": [(-1, 2), (3, 8)]},
        {"ids": [1, 2.5, 3]},
        {"text": 1},
        {"more": 1},
    ):
        with pytest.raises(ValueError):  # noqa: PT011
            Transcript.read(json.dumps({**good, **change}).encode())
