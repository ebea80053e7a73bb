"""An answer's text as it arrives, for parsers that wait where the text is not there yet.

A parser is a generator: it yields where it needs more text. It decides only on what is certain, so the pieces in
which the text arrives change nothing.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
Wait = Generator[None, None, T]  # yields until more text is there, or the text has ended

BLANKS = " \t\r\n"


class Incoming:
    """Text that grows at its end and is consumed at its beginning.

    ended: whether no more text comes
    """

    def __init__(self) -> None:
        self._text = ""
        self._at = 0  # the first character that is not consumed
        self._held_from: int | None = None
        self.ended = False

    def push(self, text: str) -> None:
        kept = self._at if self._held_from is None else self._held_from
        self._text = self._text[kept:] + text
        self._at -= kept
        self._held_from = None if self._held_from is None else 0

    def hold(self) -> None:
        """Keep what is consumed from here on, for `held`."""
        self._held_from = self._at

    def release(self) -> None:
        """Keep it no longer."""
        self._held_from = None

    def held(self) -> str:
        """What was consumed since `hold`, which this ends; nothing if it was released."""
        text = "" if self._held_from is None else self._text[self._held_from : self._at]
        self.release()
        return text

    def peek(self) -> Wait[str]:
        """The next character, not consumed; empty at the end."""
        while self._at == len(self._text) and not self.ended:
            yield
        return self._text[self._at : self._at + 1]

    def next_is(self, mark: str) -> Wait[bool]:
        """Whether `mark` comes next; it is not consumed."""
        while True:
            there = self._text[self._at : self._at + len(mark)]
            if there == mark or self.ended or not mark.startswith(there):
                return there == mark
            yield

    def take(self, *marks: str) -> Wait[str | None]:
        """The first of `marks` that comes next, consumed; None: none of them does."""
        for mark in marks:
            if (yield from self.next_is(mark)):
                self._at += len(mark)
                return mark
        return None

    def take_end(self, mark: str) -> Wait[None]:
        """Consume `mark` if it comes next, or as much of it as there is where the text ends."""
        if (yield from self.take(mark)) is None and mark.startswith(self._text[self._at :]):
            self._at = len(self._text)

    def take_any(self, characters: str) -> Wait[str]:
        """All characters up to the first one that is not among `characters`."""
        taken = ""
        while (character := (yield from self.peek())) and character in characters:
            self._at += 1
            taken += character
        return taken

    def blanks(self) -> Wait[str]:
        return self.take_any(BLANKS)

    def until(self, *marks: str) -> Wait[tuple[str, str | None]]:
        """More certain text before the first of `marks`, and that mark if it was reached; both are consumed.

        ("", None) at the end. No mark may begin with another.
        """
        while True:
            there = self._text[self._at :]
            found = min(((at, mark) for mark in marks if (at := there.find(mark)) >= 0), default=None)
            certain = len(there) if self.ended else len(there) - _unclear(there, marks)
            if found is not None and (self.ended or found[0] < certain):
                at, mark = found
                self._at += at + len(mark)
                return there[:at], mark
            if certain or self.ended:
                self._at += certain
                return there[:certain], None
            yield

    def all_until(self, *marks: str, most: int) -> Wait[tuple[str, str | None]]:
        """All text before the first of `marks`, and the mark; none if the text ends, or is longer than `most`."""
        whole = ""
        while True:
            text, mark = yield from self.until(*marks)
            whole += text
            if len(whole) > most:
                self.give_back(len(whole) - most + len(mark or ""))
                return whole[:most], None
            if mark is not None or not text:
                return whole, mark

    def arrived(self) -> str:
        """All that is there, consumed."""
        text = self._text[self._at :]
        self._at = len(self._text)
        return text

    def give_back(self, count: int) -> None:
        """Make the last `count` characters that were consumed the next ones. There was no wait since then."""
        self._at -= count


def _unclear(text: str, marks: tuple[str, ...]) -> int:
    """Length of the longest end of `text` with which a mark begins that is not whole."""
    longest = max(map(len, marks), default=0)
    for length in range(min(longest - 1, len(text)), 0, -1):
        tail = text[-length:]
        if any(len(mark) > length and mark.startswith(tail) for mark in marks):
            return length
    return 0
