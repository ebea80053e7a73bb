"""Calls that are JSON, read as they arrive: {"name": …, "arguments": {…}}, and lists of these."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from h2o_runtime.answers.dialects.answer import Answer
from h2o_runtime.answers.dialects.incoming import Incoming, Wait

NAMES = frozenset({"name", "tool_name"})
ARGUMENTS = frozenset({"arguments", "parameters"})
_NESTED = "function"  # OpenAI's form: {"type": "function", "function": {"name": …}}
_MOST = 1 << 14  # characters of arguments that come before their function's name
_MARKS = re.compile(r'["\\{}\[\]]')
_SCALAR = "+-.0123456789abcdefghijklmnopqrstuvwxyzE"


def value(text: Incoming, tell: Callable[[str], None], most: int | None = None) -> Wait[bool]:
    """Pass on the next JSON value as it arrives → whether it is there up to its end.

    Only brackets and quotes count. most: characters after which it counts as broken.
    """
    begin = yield from text.peek()
    if begin not in ('"', "{", "["):
        word = yield from text.take_any(_SCALAR)
        tell(word)
        return bool(word)
    depth, in_string, escaped, told = 0, False, False, 0
    while (yield from text.peek()) and told != most:
        piece, end = text.arrived(), None
        if most is not None and len(piece) > most - told:
            text.give_back(len(piece) - most + told)
            piece = piece[: most - told]
        place = 1 if escaped else 0  # a character after a backslash means nothing
        escaped = False
        while (mark := _MARKS.search(piece, place)) is not None:
            place = mark.end()
            if in_string and mark[0] == "\\":
                escaped = place == len(piece)
                place += 1
            elif mark[0] == '"':
                in_string = not in_string
            elif not in_string and mark[0] != "\\":
                depth += 1 if mark[0] in "{[" else -1
            if depth == 0 and not in_string:
                end = place
                break
        if end is not None:
            text.give_back(len(piece) - end)
            tell(piece[:end])
            return True
        tell(piece)
        told += len(piece)
    return False


def string(text: Incoming, most: int) -> Wait[str | None]:
    """The next value, which must be a string; None if it is not."""
    if not (yield from text.next_is('"')):
        return None
    parts: list[str] = []
    if not (yield from value(text, parts.append, most)):
        return None
    try:
        return str(json.loads("".join(parts)))
    except ValueError:
        return None


def known_name(text: Incoming, answer: Answer) -> Wait[str | None]:
    """The next value, which must be the name of a function; None as soon as it cannot be."""
    if (yield from text.take('"')) is None:
        return None
    name = yield from bare_name(text, answer)
    return name if name and (yield from text.take('"')) else None


def bare_name(text: Incoming, answer: Answer) -> Wait[str]:
    """The longest beginning of the text with which a function's name begins, consumed."""
    name = ""
    while (character := (yield from text.peek())) and any(
        known.startswith(name + character) for known in answer.functions
    ):
        yield from text.take(character)
        name += character
    return name if name in answer.functions else ""


def arguments(text: Incoming, answer: Answer, name: str, id: str | None = None) -> Wait[bool]:
    """A call's arguments, an object → whether a call was begun."""
    if not (yield from text.next_is("{")):
        return False
    text.release()
    answer.begin(name, id)
    if (yield from value(text, answer.arguments)):
        answer.end_call()
    return True


def call(text: Incoming, answer: Answer, bare: bool = False, nested: bool = False) -> Wait[bool]:
    """A call, an object with a name and arguments, in whichever order → whether a call was begun.

    bare: no mark shows that it is a call, so the object must have arguments. nested: it is inside of another.
    """
    if (yield from text.take("{")) is None:
        return False
    name: str | None = None
    early: str | None = None  # arguments before the name
    begun = False
    while True:
        yield from text.blanks()
        if (yield from text.take("}")) is not None:
            break
        key = yield from string(text, _MOST)
        yield from text.blanks()
        if key is None or (yield from text.take(":")) is None:
            return begun
        yield from text.blanks()
        if key in NAMES and name is None:
            name = yield from known_name(text, answer)
            if name is None:
                return begun
        elif key in ARGUMENTS and name is not None and not begun and (yield from text.next_is("{")):
            begun = yield from arguments(text, answer, name)
        elif key == _NESTED and not (begun or nested) and (yield from text.next_is("{")):
            begun = yield from call(text, answer, bare, nested=True)
        else:
            other = yield from _held(text)
            if other is None:
                return begun
            early = other if key in ARGUMENTS else early
        yield from text.blanks()
        if (yield from text.take(",")) is None and not (yield from text.next_is("}")):
            return begun
    if not begun and name is not None:
        begun = _late(answer, name, early, bare)
    return begun


def calls(text: Incoming, answer: Answer, bare: bool = False) -> Wait[bool]:
    """A call or a list of calls → whether one was begun. Stops where it is neither."""
    if (yield from text.take("[")) is None:
        return (yield from call(text, answer, bare))
    begun = False
    while True:
        yield from text.blanks()
        if not (yield from call(text, answer, bare)):
            yield from text.take("]")
            return begun
        begun = True
        yield from text.blanks()
        if (yield from text.take(",")) is None:
            yield from text.take("]")
            return begun


def marked(text: Incoming, answer: Answer, end: str, bare: bool = False) -> Wait[bool]:
    """Calls between marks, of which the first is consumed → whether one was begun. `end` may be missing, or cut."""
    yield from text.blanks()
    begun = yield from calls(text, answer, bare)
    if begun:
        yield from text.blanks()
        yield from text.take_end(end)
    return begun


def _held(text: Incoming) -> Wait[str | None]:
    parts: list[str] = []
    whole = yield from value(text, parts.append, _MOST)
    return "".join(parts) if whole else None


def _late(answer: Answer, name: str, given: str | None, bare: bool) -> bool:
    """A call whose arguments are known at its end: none, before the name, or an object written as a string."""
    if given is None or given == "null":
        if bare:
            return False
        given = "{}"
    if given.startswith('"'):
        try:
            given = str(json.loads(given)).strip()
        except ValueError:
            return False
    if not given.startswith("{"):
        return False
    answer.begin(name)
    answer.arguments(given)
    answer.end_call()
    return True
