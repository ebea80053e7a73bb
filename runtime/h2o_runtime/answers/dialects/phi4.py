"""The calls of Phi-4-mini: a list of JSON objects between special tokens, or after the word functools."""

from __future__ import annotations

from h2o_runtime.answers.dialects.dialect import Dialect


class Phi4(Dialect):
    name = "phi4"
    title = "Phi-4-mini"
    begins = ("<|tool_call|>", "functools")
    ends = ("<|/tool_call|>",)
    before, quoted, after, closing = '<|tool_call|>[{"name": ', True, ', "arguments": ', "}]<|/tool_call|>"

    @classmethod
    def spoken(cls, template: str) -> bool:
        return "<|/tool|>" in template or "<|/tool_call|>" in template
