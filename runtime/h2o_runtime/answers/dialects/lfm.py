"""The calls of LFM 2: a list of calls in Python, between special tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from h2o_runtime.answers.dialects import json_parts, python_parts
from h2o_runtime.answers.dialects.answer import Answer, Schema
from h2o_runtime.answers.dialects.dialect import Dialect
from h2o_runtime.answers.dialects.incoming import Incoming, Wait
from h2o_runtime.answers.dialects.lark import Lark

_BEGIN, _END = "<|tool_call_start|>", "<|tool_call_end|>"


class Lfm(Dialect):
    name = "lfm"
    title = "LFM 2"
    begins = (_BEGIN,)
    ends = (_END,)
    before, after, closing = f"{_BEGIN}[", "(", f")]{_END}"

    @classmethod
    def spoken(cls, template: str) -> bool:
        return _BEGIN in template or "<|tool_list_start|>" in template

    def arguments(self, arguments: Mapping[str, Any]) -> str:
        return python_parts.arguments_text(arguments)

    def arguments_grammar(self, schema: Schema, lark: Lark) -> str:
        return python_parts.arguments_grammar(schema, lark)

    def call(self, text: Incoming, answer: Answer) -> Wait[bool]:
        if (yield from text.next_is("[{")):  # as the templates show earlier calls
            return (yield from json_parts.marked(text, answer, _END))
        written, end = yield from text.all_until(_END, most=python_parts.MOST)
        if end is not None:
            return python_parts.call_all(written, answer)
        return False
