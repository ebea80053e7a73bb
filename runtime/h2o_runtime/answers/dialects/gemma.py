"""Gemma's calls: a block of code, with JSON or with Python. Its templates know no tools; the prompt has to ask."""

from __future__ import annotations

from h2o_runtime.answers.dialects import json_parts, python_parts
from h2o_runtime.answers.dialects.answer import Answer
from h2o_runtime.answers.dialects.bare_json import BareJson
from h2o_runtime.answers.dialects.incoming import Incoming, Wait

_END = "```"


class Gemma(BareJson):
    name = "gemma"
    title = "Gemma 2 and 3"
    fences = ("```json", "```tool_code", "```tool_call", "```python")
    before, closing = '```json\n{"name": ', "}\n```"

    @classmethod
    def spoken(cls, template: str) -> bool:
        return "<start_of_turn>" in template

    def fenced_call(self, text: Incoming, answer: Answer) -> Wait[bool]:
        yield from text.blanks()
        if (yield from text.next_is("{")) or (yield from text.next_is("[{")):
            return (yield from json_parts.marked(text, answer, _END))
        written, end = yield from text.all_until(_END, most=python_parts.MOST)
        if end is None:
            return False
        called = python_parts.call_all(written, answer)
        if not called:
            text.give_back(len(end))
        return called
