"""Hermes' calls, which Qwen, SmolLM and others have too: <tool_call> and a JSON object, or a list of them."""

from __future__ import annotations

from h2o_runtime.answers.dialects import json_parts
from h2o_runtime.answers.dialects.answer import Answer
from h2o_runtime.answers.dialects.base import Dialect, json_name
from h2o_runtime.answers.dialects.incoming import Incoming, Wait


class Hermes(Dialect):
    name = "hermes"
    title = "Hermes, Qwen 2.5, Qwen 3, SmolLM2, SmolLM3, Granite 4; templates of ChatML without tools"
    begins = ("<tool_call>",)
    ends = ("</tool_call>",)

    @classmethod
    def spoken(cls, template: str) -> bool:
        return "<tool_call>" in template or "<|im_start|>" in template

    def opening(self, name: str) -> str:
        return f'<tool_call>\n{{"name": {json_name(name)}, "arguments": '

    @property
    def closing(self) -> str:
        return "}\n</tool_call>"

    def call(self, text: Incoming, answer: Answer) -> Wait[bool]:
        return json_parts.marked(text, answer, "</tool_call>")
