"""What a parser finds in an answer: thoughts, text, and calls of functions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from h2o_runtime.answers.dialects.incoming import BLANKS
from h2o_runtime.answers.dialects.strict_json import parsed

Schema = Mapping[str, Any]


@dataclass(frozen=True)
class Thought:
    """More of what the model thinks."""

    text: str


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


Delta = str | Thought | CallBegun | Arguments  # text is text


class Answer:
    """Collects the parts of one answer, in order.

    functions  those that the answer may call: schemas of their parameters, by name
    calls      begun so far
    cut        whether the last call is not whole
    broken     whether an earlier one is not
    """

    def __init__(
        self,
        functions: Mapping[str, Schema],
        new_id: Callable[[], str],
        hidden: Collection[str] = (),
        only_one: bool = False,
    ) -> None:
        """hidden: special tokens, which are not text. only_one: whether all after the first call is dropped."""
        self.functions = functions
        self._new_id = new_id
        self.calls = 0
        self.cut = self.broken = False
        self._hidden = hidden
        self._only_one = only_one
        self._full = False
        self._deltas: list[Delta] = []
        self._blanks = ""  # held back until text follows them
        self._spoke = False  # whether there was text
        self._after_call = False
        self._arguments: list[str] = []  # of the last call

    def taken(self) -> list[Delta]:
        """The parts since the last time."""
        deltas, self._deltas = self._deltas, []
        return deltas

    def text(self, text: str) -> None:
        """More text. Blanks around calls are dropped, except those between two texts."""
        for mark in self._hidden:
            text = text.replace(mark, "")
        if self._full or not text:
            return
        if self.calls == 0 and not self.functions:
            self._deltas.append(text)
            return
        if self._after_call:
            text = text.lstrip(BLANKS)
        words = text.rstrip(BLANKS)
        if words:
            self._deltas.append(self._blanks + words)
            self._blanks, self._spoke, self._after_call = text[len(words) :], True, False
        else:
            self._blanks += text

    def thought(self, text: str) -> None:
        if text and not self._full:
            self._deltas.append(Thought(text))

    def begin(self, name: str, id: str | None = None) -> None:
        """A call whose arguments follow. id: the model's own for it."""
        self._blanks = self._blanks if self._spoke else ""
        self._after_call = True
        self._full |= self._only_one and self.calls > 0
        if self._full:
            return
        self.broken |= self.cut
        self.calls += 1
        self.cut = True
        self._arguments = []
        self._deltas.append(CallBegun(self.calls - 1, name, id or self._new_id()))

    def arguments(self, text: str) -> None:
        """More of the last call's arguments."""
        text = text.encode("utf-8", "replace").decode()  # half a surrogate pair is no text
        if text and not self._full:
            self._arguments.append(text)
            self._deltas.append(Arguments(self.calls - 1, text))

    def end_call(self) -> None:
        """The last call has all its arguments. Arguments that are no JSON are not whole."""
        if self._full:
            return
        self.cut = not _is_object("".join(self._arguments))
        self._full = self._only_one

    def end(self) -> None:
        """No more comes."""
        if self._blanks and not self.calls:
            self._deltas.append(self._blanks)
        self._blanks = ""


def _is_object(text: str) -> bool:
    """Whether a client can read it as a call's arguments."""
    try:
        return isinstance(parsed(text), dict)
    except ValueError:
        return False
