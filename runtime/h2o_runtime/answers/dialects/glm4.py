"""GLM-4's calls: the function's name on a line of its own, then its arguments as JSON."""

from __future__ import annotations

from h2o_runtime.answers.dialects import json_parts
from h2o_runtime.answers.dialects.answer import Answer
from h2o_runtime.answers.dialects.dialect import Dialect, tried
from h2o_runtime.answers.dialects.incoming import Incoming, Wait


class Glm4(Dialect):
    name = "glm4"
    title = "GLM-4, GLM-4-0414"
    ends = ("<|observation|>",)
    shown = ends
    before, after, closing = "", "\n", ""

    def read(self, text: Incoming, answer: Answer) -> Wait[None]:
        begins_line = True
        while True:
            if begins_line:
                answer.text((yield from text.blanks()))
                if (yield from tried(text, answer, self.call(text, answer))):
                    continue
            piece, mark = yield from text.until("\n")
            answer.text(piece + (mark or ""))
            if mark is None and not piece:
                return
            begins_line = mark is not None

    def call(self, text: Incoming, answer: Answer) -> Wait[bool]:
        name = yield from json_parts.bare_name(text, answer)
        if not name or (yield from text.take("\n")) is None:
            return False
        return (yield from json_parts.arguments(text, answer, name))
