"""The calls of Granite 3: a list of JSON objects after a special token."""

from __future__ import annotations

from h2o_runtime.answers.dialects import json_parts
from h2o_runtime.answers.dialects.answer import Answer
from h2o_runtime.answers.dialects.dialect import Dialect, json_name
from h2o_runtime.answers.dialects.incoming import Incoming, Wait


class Granite(Dialect):
    name = "granite"
    title = "Granite 3"
    begins = ("<|tool_call|>", "<tool_call>")
    dropped = ("<response>", "</response>")  # around what follows thoughts
    ends = ("</tool_call>",)

    @classmethod
    def spoken(cls, template: str) -> bool:
        return "<|tool_call|>" in template or (
            "<|start_of_role|>" in template and "<tool_call>" not in template
        )

    def opening(self, name: str) -> str:
        return f'<|tool_call|>[{{"name": {json_name(name)}, "arguments": '

    @property
    def closing(self) -> str:
        return "}]"

    def call(self, text: Incoming, answer: Answer) -> Wait[bool]:
        return json_parts.marked(text, answer, "</tool_call>")
