"""A stream's event is one line to every client, whatever text is in it."""

from __future__ import annotations

import json

from h2o_server.http.stream import event


def test_no_character_ends_an_event_early() -> None:
    """Not even those that end a line in Python alone, as in httpx's `iter_lines`."""
    characters = [chr(code) for code in [*range(0x3000), 0xFEFF, 0x1F600]]
    for character in characters:
        line, rest = event({"text": character}).splitlines()
        assert rest == ""
        assert json.loads(line.removeprefix("data: ")) == {"text": character}


def test_the_name_of_an_event_is_a_line_of_its_own() -> None:
    assert event({"type": "a", "text": "é"}) == 'event: a\ndata: {"type": "a", "text": "é"}\n\n'
