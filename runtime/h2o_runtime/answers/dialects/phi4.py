"""The calls of Phi-4-mini: a list of JSON objects between special tokens, or after the word functools."""

from __future__ import annotations

from h2o_runtime.answers.dialects import json_parts
from h2o_runtime.answers.dialects.answer import Answer
from h2o_runtime.answers.dialects.dialect import Dialect, json_name
from h2o_runtime.answers.dialects.incoming import Incoming, Wait


class Phi4(Dialect):
    name = "phi4"
    title = "Phi-4-mini"
    begins = ("<|tool_call|>", "functools")
    ends = ("<|/tool_call|>",)

    @classmethod
    def spoken(cls, template: str) -> bool:
        return "<|/tool|>" in template or "<|/tool_call|>" in template

    def opening(self, name: str) -> str:
        return f'<|tool_call|>[{{"name": {json_name(name)}, "arguments": '

    @property
    def closing(self) -> str:
        return "}]<|/tool_call|>"

    def call(self, text: Incoming, answer: Answer) -> Wait[bool]:
        return json_parts.marked(text, answer, "<|/tool_call|>")
