"""The calls of Granite 3: a list of JSON objects after a special token."""

from __future__ import annotations

from h2o_runtime.answers.dialects.dialect import Dialect


class Granite(Dialect):
    name = "granite"
    title = "Granite 3"
    begins = ("<|tool_call|>", "<tool_call>")
    dropped = ("<response>", "</response>")  # around what follows thoughts
    ends = ("</tool_call>",)
    before, quoted, after, closing = '<|tool_call|>[{"name": ', True, ', "arguments": ', "}]"

    @classmethod
    def spoken(cls, template: str) -> bool:
        return "<|tool_call|>" in template or (
            "<|start_of_role|>" in template and "<tool_call>" not in template
        )
