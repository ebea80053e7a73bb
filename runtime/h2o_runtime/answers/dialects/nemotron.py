"""The calls of Nemotron Nano 2: a list of JSON objects between tags."""

from __future__ import annotations

from h2o_runtime.answers.dialects import json_parts
from h2o_runtime.answers.dialects.answer import Answer
from h2o_runtime.answers.dialects.dialect import Dialect, json_name
from h2o_runtime.answers.dialects.incoming import Incoming, Wait


class Nemotron(Dialect):
    name = "nemotron"
    title = "Nemotron Nano 2, Llama Nemotron"
    begins = ("<TOOLCALL>",)
    ends = ("</TOOLCALL>",)

    @classmethod
    def spoken(cls, template: str) -> bool:
        return "<TOOLCALL>" in template

    def opening(self, name: str) -> str:
        return f'<TOOLCALL>[{{"name": {json_name(name)}, "arguments": '

    @property
    def closing(self) -> str:
        return "}]</TOOLCALL>"

    def call(self, text: Incoming, answer: Answer) -> Wait[bool]:
        return json_parts.marked(text, answer, "</TOOLCALL>")
