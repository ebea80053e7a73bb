"""Splits an answer, as it is generated, into thoughts, text and calls of functions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from h2o_runtime.answers.dialects.answer import Answer, Delta, Schema
from h2o_runtime.answers.dialects.dialect import Dialect, Thinking
from h2o_runtime.answers.dialects.incoming import Incoming, Wait

_BLOCK = 4096  # characters read at a time: the cost of a mark grows with them


class AnswerReader:
    """Reads one answer. Calls are in the answer's own text, not in its thoughts."""

    def __init__(
        self,
        dialect: Dialect,
        functions: Mapping[str, Schema],
        *,
        thinks: bool = False,
        prompt: str = "",
        forced: bool = False,
        only_one: bool = False,
        hidden: Collection[str] = (),
    ) -> None:
        """thinks: whether the answer may begin with thoughts. prompt: its end may already begin them.

        functions  that the answer may call: schemas of their parameters, by name
        forced     whether the answer must be a call
        only_one   whether text after the first call is dropped
        hidden     special tokens that are not shown
        """
        self._dialect = dialect
        self._answer = Answer(functions, dialect.new_id, hidden, only_one)
        self._hidden = hidden
        self._text = Incoming()
        self._forced = forced
        self._written = ""  # the text of a forced answer, while it has no call
        self._thinks = thinks
        self._began = prompt.rstrip().endswith(dialect.thinking.begin.rstrip())
        self._parser = self._read()
        self._waits = True

    @property
    def calls(self) -> int:
        """Calls begun so far."""
        return self._answer.calls

    @property
    def cut(self) -> bool:
        """Whether a call is not whole; final after `finish`."""
        return self._answer.cut or self._answer.broken

    def push(self, text: str) -> list[Delta]:
        """The parts that are certain after `text`."""
        for block in _blocks(text, self._hidden):
            self._text.push(block)
            self._go_on()
        self._written = self._written + text if self._forced and not self.calls else ""
        return self._answer.taken()

    def finish(self) -> list[Delta]:
        """The rest, as no more comes."""
        name = self._forced_name()
        if name is not None:
            self._answer.begin(name)
        else:
            self._text.ended = True
            self._go_on()
            self._answer.end()
        return self._answer.taken()

    def _go_on(self) -> None:
        self._waits = self._waits and next(self._parser, "ended") is None

    def _read(self) -> Wait[None]:
        if self._thinks:
            yield from _thoughts(self._text, self._answer, self._dialect.thinking, self._began)
        yield from self._dialect.read(self._text, self._answer)

    def _forced_name(self) -> str | None:
        """The function whose call was cut before its arguments, if only one is possible."""
        if not self._forced or self.calls:
            return None
        written = self._written
        marks = self._dialect.thinking
        if self._thinks and (self._began or written.lstrip().startswith(marks.begin)):
            _, end, written = written.partition(marks.end)
            if not end:
                return None
            written = written.lstrip().removeprefix(marks.then)
        functions = self._answer.functions
        possible = [name for name in functions if self._dialect.opening(name).startswith(written)]
        return possible[0] if len(possible) == 1 else None


def _blocks(text: str, marks: Collection[str]) -> Iterator[str]:
    """The text in blocks, none of which ends inside of a mark: as when it arrives token by token."""
    start = 0
    while start < len(text):
        end = start + _BLOCK
        for mark in marks:
            across = text.find(mark, end - len(mark) + 1, end + len(mark) - 1)
            end = end if across < 0 else across + len(mark)
        yield text[start:end]
        start = end


def _thoughts(text: Incoming, answer: Answer, marks: Thinking, began: bool) -> Wait[None]:
    """Read thoughts, if the answer begins with some. Blanks around them are dropped."""
    if not began:
        text.hold()
        yield from text.blanks()
        if (yield from text.take(marks.begin)) is None:
            answer.text(text.held())
            return
        text.release()
    yield from text.blanks()
    blanks, mark = "", None
    while mark is None:
        piece, mark = yield from text.until(marks.end)
        if mark is None and not piece:
            return
        piece = blanks + piece
        thought = piece.rstrip()
        blanks = piece[len(thought) :]
        answer.thought(thought)
    yield from text.blanks()
