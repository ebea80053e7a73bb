"""What each family's models write is read, whole and in pieces."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.dialects.families import FAMILIES, FUNCTIONS, OSLO, read

from h2o_runtime.answers.dialects import DIALECTS
from h2o_runtime.answers.dialects.answer import Arguments
from h2o_runtime.answers.dialects.reader import AnswerReader

WHOLE = ("gemma 3, python", "lfm 2", "olmo 3")  # calls that are read when they are whole
CALLING = [name for name, family in FAMILIES.items() if family[4]]
IN_PIECES = [name for name in CALLING if name not in WHOLE]


@pytest.mark.parametrize("family", FAMILIES)
def test_an_answer_is_read_whole_and_cut_anywhere(family: str) -> None:
    dialect, answer, *expected = FAMILIES[family]
    assert read(dialect, answer, thinks=True) == (*expected, False)
    assert read(dialect, *answer, thinks=True) == (*expected, False)
    for cut in range(1 + len(answer) % 2, len(answer), 2):
        assert read(dialect, answer[:cut], answer[cut:], thinks=True) == (*expected, False)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_answer_that_ends_early_is_read_the_same_in_pieces(family: str) -> None:
    dialect, answer, _, _, calls = FAMILIES[family]
    for end in range(len(answer) % 4, len(answer), 4):
        found = read(dialect, answer[:end], thinks=True)
        assert found == read(dialect, *answer[:end], thinks=True)
        names = [name for name, _ in found[2]]
        assert names == [name for name, _ in calls[: len(names)]]
        for (_, written), (_, whole) in zip(found[2][:-1], calls, strict=False):
            assert written == whole
        if found[2] and not found[3]:
            json.loads(found[2][-1][1])


def marked() -> list[str]:
    """Pieces of all dialects' texts."""
    marks = {mark for kind in DIALECTS for mark in kind().marks}
    return [
        *sorted(marks),
        "get_time",
        '{"name": "get_time", "arguments": ',
        '{"city": "Oslo"}',
        "}",
        "[",
        "\n",
    ]


@pytest.mark.parametrize("dialect", DIALECTS.names)
@settings(max_examples=12)
@given(
    parts=st.lists(st.sampled_from([*marked(), *'{}"\\:, ;(`g.h<>=']), max_size=12),
    cuts=st.lists(st.integers(0, 200), max_size=6),
)
def test_the_cut_into_pieces_changes_nothing(dialect: str, parts: list[str], cuts: list[int]) -> None:
    text = "".join(parts)
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    whole = read(dialect, text, thinks=True)
    assert read(dialect, *(text[a:b] for a, b in itertools.pairwise(places)), thinks=True) == whole
    assert read(dialect, *text, thinks=True) == whole


@pytest.mark.parametrize("family", CALLING)
def test_functions_that_were_not_offered_are_no_calls(family: str) -> None:
    dialect, answer, *_ = FAMILIES[family]
    if dialect == "harmony":  # whose recipients are no text
        return
    _, text, calls, _ = read(dialect, answer, functions=["other"], thinks=True)
    assert not calls
    assert "get_time" in text


@pytest.mark.parametrize("family", CALLING)
def test_the_first_call_alone(family: str) -> None:
    dialect, answer, thoughts, text, calls = FAMILIES[family]
    found = read(dialect, answer, "Words after it.", thinks=True, only_one=True)
    assert (found[0], found[2]) == (thoughts, calls[:1])
    assert text.startswith(found[1])


@pytest.mark.parametrize("family", IN_PIECES)
def test_arguments_come_while_they_are_written(family: str) -> None:
    dialect, answer, *_ = FAMILIES[family]
    reader = AnswerReader(DIALECTS[dialect](), FUNCTIONS, thinks=True)
    told = reader.push(answer[: answer.index("Oslo", answer.index("city")) + 4])
    written = "".join(part.text for part in told if isinstance(part, Arguments))
    assert written == OSLO[1][: len(written)]
    assert len(written) >= len('{"city": "Os')


@pytest.mark.parametrize("name", DIALECTS.names)
def test_what_a_dialect_writes_it_reads(name: str) -> None:
    dialect = DIALECTS[name]()
    written = dialect.written("get_time", {"city": 'O"s\nl\\o', "hours": 3})
    _, text, calls, cut = read(name, written)
    assert (text, cut) == ("", False)
    assert [(name, json.loads(arguments)) for name, arguments in calls] == [
        ("get_time", {"city": 'O"s\nl\\o', "hours": 3})
    ]


@pytest.mark.parametrize("name", DIALECTS.names)
def test_long_answers_without_sense_are_read(name: str) -> None:
    """Neither their depth nor their marks may be too many."""
    dialect = DIALECTS[name]()
    opening = dialect.opening("get_time")
    for part in (
        *dialect.marks,
        "[",
        "{",
        '{"function": ',
        '{"a": "',
        opening,
        opening + "{",
        opening + "{city:[",
    ):
        assert read(name, part * 1000, part * 100, thinks=True)


@pytest.mark.parametrize("name", DIALECTS.names)
def test_a_required_call_that_is_cut_early_has_its_name(name: str) -> None:
    """Its client learns which function the model had to call, wherever the limit was."""
    opening = DIALECTS[name]().opening("g.h")
    for end in range(len(opening)):
        found = read(name, opening[:end], functions=["g.h"], forced=True)
        assert found[:2] == ("", "")
        assert found[2] in ([("g.h", "")], [("g.h", "{")])
        assert found[3]
