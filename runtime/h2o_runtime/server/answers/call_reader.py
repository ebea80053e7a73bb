"""Tool calls in Llama 3's format, read as they arrive: {"name": …, "parameters": {…}}, several after a ";".

A model trained for tools begins its answer with that object, or with the special token <|python_tag|>, which
decoding drops. After the name and the arguments' first brace it counts as a call, and its arguments are
passed on as the model writes them.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

_TAG = "<|python_tag|>"
_HEAD = re.compile(
    r"""\s*(?:<\|python_tag\|>)?\s*\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"""
    r""""name"\s*:\s*"(?P<name>[^"\\]*)"\s*,\s*"(?:parameters|arguments)"\s*:\s*(?=\{)"""
)
_CUT_NAME = re.compile(r"""\s*\{\s*"name"\s*:\s*"(?P<name>[^"\\]*)(?P<whole>"[^{]*)?\Z""")


@dataclass(frozen=True)
class CallBegun:
    """A call of a function, the `index`-th of the answer."""

    index: int
    name: str
    id: str


@dataclass(frozen=True)
class Arguments:
    """More of a call's arguments, which are JSON once complete."""

    index: int
    text: str


Delta = str | CallBegun | Arguments  # text is text


class _State(Enum):
    OPEN = auto()  # pending text may still become a call
    ARGUMENTS = auto()
    CLOSING = auto()  # after the arguments, before the call's last brace
    TEXT = auto()  # no further text is a call
    IGNORED = auto()  # more calls than allowed


class CallReader:
    """Reads one answer.

    names     functions that the answer may call
    forced    whether the answer must be a call
    only_one  whether text after the first call is dropped
    """

    def __init__(self, names: Collection[str], *, forced: bool = False, only_one: bool = False) -> None:
        self._names = names
        self._forced = forced
        self._only_one = only_one
        self._state = _State.OPEN if names else _State.TEXT
        self._pending = ""
        self._json = _Braces()
        self.calls = 0  # begun so far
        self.cut = False  # whether the last call's arguments are incomplete; final after `finish`

    def push(self, text: str) -> list[Delta]:
        """The events that are certain after `text`."""
        deltas: list[Delta] = []
        rest: str | None = text
        while rest is not None:
            rest = self._step(rest, deltas)
        return deltas

    def finish(self) -> list[Delta]:
        """The text held back, once no more text comes."""
        self.cut = self._state is _State.ARGUMENTS
        if self._state is not _State.OPEN:
            return []
        pending, self._pending = self._pending, ""
        values = _objects(pending, self._names)
        if values:
            values = values[:1] if self._only_one else values
            return [delta for name, arguments in values for delta in self._whole(name, arguments)]
        name = self._forced_name(pending) if self.calls == 0 else None
        if name is not None:
            self.cut = True
            return [self._begin(name)]
        self.cut = self.calls > 0 and bool(pending.strip(" \t\r\n;"))
        return [pending] if pending and (self.calls == 0 or self.cut) else []

    def _step(self, text: str, deltas: list[Delta]) -> str | None:
        """Consume text in the current state → the rest for the next state; None if there is no rest."""
        if self._state is _State.TEXT:
            deltas.extend([text] if text else [])
            return None
        if self._state is _State.IGNORED:
            return None
        if self._state is _State.OPEN:
            return self._open(text, deltas)
        end = self._json.end(text)
        taken, rest = (text, None) if end is None else (text[:end], text[end:])
        if self._state is _State.ARGUMENTS:
            deltas.extend([Arguments(self.calls - 1, taken)] if taken else [])
            if rest is not None:
                self._state, self._json = _State.CLOSING, _Braces(depth=1)
        elif rest is not None:
            self._state = _State.IGNORED if self._only_one else _State.OPEN
        return rest

    def _open(self, text: str, deltas: list[Delta]) -> str | None:
        self._pending += text
        begun = self._pending
        if self.calls:  # between two calls
            begun = begun.lstrip().removeprefix(";")
        head = _HEAD.match(begun)
        if head is not None and head["name"] in self._names:
            self._state, self._json, self._pending = _State.ARGUMENTS, _Braces(), ""
            deltas.append(self._begin(head["name"]))
            return begun[head.end() :]
        if head is None and may_become_call(begun):
            return None
        self._state, self._pending = _State.TEXT, ""
        return begun.lstrip() if self.calls else begun

    def _begin(self, name: str) -> CallBegun:
        self.calls += 1
        return CallBegun(self.calls - 1, name, f"call_{secrets.token_hex(12)}")

    def _whole(self, name: str, arguments: str) -> list[Delta]:
        return [self._begin(name), Arguments(self.calls - 1, arguments)]

    def _forced_name(self, pending: str) -> str | None:
        """The function whose call was cut before its arguments, if only one is possible."""
        if not self._forced:
            return None
        cut = _CUT_NAME.match(pending)
        begin = cut["name"] if cut else ""
        if cut and cut["whole"]:
            return begin
        possible = [name for name in self._names if name.startswith(begin)]
        return possible[0] if len(possible) == 1 else None


def may_become_call(text: str) -> bool:
    """Whether an answer that begins with `text` may still become a tool call."""
    start = text.lstrip()
    return not start or start.startswith("{") or _TAG.startswith(start[: len(_TAG)])


class _Braces:
    """Finds the end of a JSON object."""

    _MARKS = re.compile(r'["\\{}]')

    def __init__(self, depth: int = 0) -> None:
        self._depth = depth
        self._in_string = False
        self._escaped = -1  # index of the character after a backslash, in the text to come

    def end(self, text: str) -> int | None:
        """The end of the object in `text`, which continues the previous text; None if it is not there."""
        escaped, self._escaped = self._escaped, -1
        for mark in self._MARKS.finditer(text):
            at, character = mark.start(), mark[0]
            if at == escaped:
                continue
            if self._in_string:
                if character == "\\":
                    escaped = at + 1
                elif character == '"':
                    self._in_string = False
            elif character == '"':
                self._in_string = True
            elif character in "{}":
                self._depth += 1 if character == "{" else -1
                if self._depth == 0:
                    return mark.end()
        self._escaped = 0 if escaped == len(text) else -1
        return None


def _objects(text: str, names: Collection[str]) -> list[tuple[str, str]]:
    """The calls in `text`, whatever the order of their members; empty if it is anything else."""
    decoder = json.JSONDecoder()
    calls: list[tuple[str, str]] = []
    rest = text.strip().removeprefix(_TAG).lstrip(" \t\r\n;")
    while rest:
        try:
            value, end = decoder.raw_decode(rest)
        except (ValueError, RecursionError):
            return []
        call = _object(value, names)
        if call is None:
            return []
        calls.append(call)
        rest = rest[end:].lstrip().removeprefix(";").lstrip()
    return calls


def _object(value: Any, names: Collection[str]) -> tuple[str, str] | None:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or value["name"] not in names:
        return None
    parameters = value.get("parameters", value.get("arguments"))
    if not isinstance(parameters, dict):
        return None
    return value["name"], json.dumps(parameters, ensure_ascii=False)
