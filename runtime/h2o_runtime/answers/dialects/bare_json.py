"""Llama 3's calls: {"name": …, "parameters": {…}}, several after a ";". Nothing but their place marks them.

So a call begins a line, or is all of a block of code marked as JSON. A model without a format of its own may also
have learned Hermes' marks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from h2o_runtime.answers.dialects import json_parts
from h2o_runtime.answers.dialects.answer import Answer
from h2o_runtime.answers.dialects.dialect import Dialect, tried
from h2o_runtime.answers.dialects.incoming import Incoming, Wait

_FENCE = "```"


@dataclass(frozen=True)
class BareJson(Dialect):
    """unmarked: whether calls are read that only their place shows."""

    unmarked: bool = True

    name = "json"
    title = "Llama 3; any template that shows no other dialect"
    begins = ("<tool_call>",)
    dropped: ClassVar[tuple[str, ...]] = ("<|python_tag|>",)
    ends = ("</tool_call>",)
    fences: ClassVar[tuple[str, ...]] = ("```json",)  # beginnings of code that may be a call
    before, quoted, after, closing = '{"name": ', True, ', "parameters": ', "}"

    @classmethod
    def spoken(cls, template: str) -> bool:
        return False  # it is the default

    def read(self, text: Incoming, answer: Answer) -> Wait[None]:
        begins_line, in_code = True, False
        while True:
            if begins_line:
                answer.text((yield from text.blanks()))
                may_call = self.unmarked and bool(answer.functions) and not in_code
                if may_call and (yield from text.next_is("{")):
                    begins_line = yield from tried(text, answer, self._bare_calls(text, answer))
                    continue
                if may_call and (fence := (yield from text.take(*self.fences))) is not None:
                    in_code = not (yield from tried(text, answer, self.fenced_call(text, answer), fence))
                    continue
                if (yield from text.take(_FENCE)) is not None:
                    answer.text(_FENCE)
                    in_code = not in_code
            piece, mark = yield from text.until("\n", *self.begins, *self.dropped)
            answer.text(piece)
            if mark in self.begins:
                begins_line = yield from tried(text, answer, self.call(text, answer), mark)
                continue
            if mark is None and not piece:
                return
            answer.text("\n" if mark == "\n" else "")
            begins_line = mark is not None

    def fenced_call(self, text: Incoming, answer: Answer) -> Wait[bool]:
        """Read what follows one of `fences` → whether a call was begun. If not, the code's end is still to come."""
        return json_parts.marked(text, answer, _FENCE, bare=True)

    def _bare_calls(self, text: Incoming, answer: Answer) -> Wait[bool]:
        if not (yield from json_parts.call(text, answer, bare=True)):
            return False
        while True:
            text.hold()
            yield from text.blanks()
            if (yield from text.take(";")) is None:
                text.release()
                return True
            yield from text.blanks()
            if not (yield from text.peek()):
                text.release()
                return True
            if not (yield from json_parts.call(text, answer, bare=True)):
                answer.text(text.held())
                answer.cut = not (yield from text.peek())
                return True
