"""Llama 3's calls: which texts are calls, and which stay texts."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from tests.runtime.dialects.families import read as read_as

NAMES = {"f", "g.h"}
CALL = '{"name": "f", "parameters": {"x": 1}}'


Calls = list[tuple[str, str]]


def read(*pieces: str, names: Collection[str] = NAMES, **options: bool) -> tuple[str, Calls, bool]:
    """Text, names and arguments of the calls, and whether the last one was cut."""
    return read_as("json", *pieces, functions=names, **options)[1:]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CALL, [("f", '{"x": 1}')]),
        (f"  \n{CALL}\n ", [("f", '{"x": 1}')]),
        (f"<|python_tag|>{CALL}", [("f", '{"x": 1}')]),
        (f"<|python_tag|> {CALL}", [("f", '{"x": 1}')]),
        (f"{CALL}; {CALL}", [("f", '{"x": 1}')] * 2),
        (f"{CALL};{CALL};", [("f", '{"x": 1}')] * 2),
        (f"{CALL}\n{CALL}", [("f", '{"x": 1}')] * 2),
        ('{"name": "g.h", "arguments": {}}', [("g.h", "{}")]),
        ('{"type": "function", "name": "f", "parameters": {"x": "é"}}', [("f", '{"x": "é"}')]),
        ('{"parameters": {"x": {"y": [null]}}, "name": "f"}', [("f", '{"x": {"y": [null]}}')]),
        ('{"name":"f","parameters":{"x":"}\\"{"}}', [("f", '{"x":"}\\"{"}')]),
        ('{"name": "f", "parameters": {"x": "\\\\"}, "id": {"a": "}"}}', [("f", '{"x": "\\\\"}')]),
        ('{"name": "f", "parameters": {"x": ' + "9" * 5000 + "}}", [("f", '{"x": ' + "9" * 5000 + "}")]),
        (CALL[:-1], [("f", '{"x": 1}')]),
    ],
)
def test_calls(text: str, expected: Calls) -> None:
    assert read(text) == ("", expected, False)
    assert read(*text) == ("", expected, False)
    assert read(text, only_one=True) == ("", expected[:1], False)


def test_an_end_that_a_limit_cuts_is_no_text() -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    for length in range(call.index("\n</"), len(call) + 1):
        text, calls, _ = read_as("hermes", call[:length], functions=NAMES)[1:]
        assert (text.strip(), calls) == ("", [("f", "{}")])


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "Hello.",
        "{",
        CALL[:22],
        f"I call {CALL}",
        f"[{CALL}]",
        '{"name": "unknown", "parameters": {}}',
        '{"name": "f"}',
        '{"name": "f", "parameters": "x"}',
        '{"name": "f", "parameters": null}',
        '{"name": ["f"], "parameters": {}}',
        '{"name": {"f": 1}, "parameters": {}}',
        '{"name": null, "parameters": {}}',
        '{"parameters": {}}',
        '{"parameters": {"a": 1}, "name": "f"',
        "[]",
        "1",
        "null",
        "[" * 100_000,
    ],
)
def test_no_calls(text: str) -> None:
    assert read(text) == (text, [], False)
    if len(text) < 1000:
        assert read(*text) == (text, [], False)
    assert read(text, names=()) == (text, [], False)


@pytest.mark.parametrize(
    ("text", "after"),
    [
        (f"{CALL} That was it.", "That was it."),
        (f"{CALL}, {CALL}", f", {CALL}"),
        (f'{CALL} {{"name": "unknown", "parameters": {{}}}}', '{"name": "unknown", "parameters": {}}'),
    ],
)
def test_text_after_a_call_is_not_lost(text: str, after: str) -> None:
    assert read(text) == read(*text) == (after, [("f", '{"x": 1}')], False)
    assert read(text, only_one=True) == ("", [("f", '{"x": 1}')], False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CALL[:-2], [("f", '{"x": 1')]),
        (CALL[:29], [("f", "{")]),
        (f"{CALL}; {CALL[:-3]}", [("f", '{"x": 1}'), ("f", '{"x": ')]),
        ('{"name": "f", "parameters": {"x": ' + "[" * 1000, [("f", '{"x": ' + "[" * 1000)]),
    ],
)
def test_a_call_that_is_cut_is_a_part_of_one(text: str, expected: Calls) -> None:
    assert read(text) == read(*text) == ("", expected, True)


def test_a_second_call_that_is_cut_before_its_arguments_is_text() -> None:
    assert read(f'{CALL}; {{"na') == ('; {"na', [("f", '{"x": 1}')], True)


@pytest.mark.parametrize("text", ["", "{", '{"na', '{"name": "', '{"name": "g', '{"name": "g.h", "param'])
def test_a_forced_call_has_a_name_as_soon_as_it_can_only_be_one(text: str) -> None:
    assert read(text, names={"g.h"}, forced=True) == ("", [("g.h", "")], True)
    known = '"g' in text
    assert read(text, forced=True) == (("", [("g.h", "")], True) if known else (text, [], False))


def test_a_name_that_is_whole_is_not_the_beginning_of_another() -> None:
    assert read('{"name": "f", ', names={"f", "f2"}, forced=True)[1] == [("f", "")]
    assert read('{"name": "f', names={"f", "f2"}, forced=True)[1] == []
