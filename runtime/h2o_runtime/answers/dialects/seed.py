"""The calls and thoughts of Seed-OSS: Qwen3-Coder's tags between marks of its own."""

from __future__ import annotations

from h2o_runtime.answers.dialects.dialect import Thinking
from h2o_runtime.answers.dialects.xml_parts import XmlDialect


class Seed(XmlDialect):
    name = "seed"
    title = "Seed-OSS"
    begins = ("<seed:tool_call>",)
    ends = ("</seed:tool_call>",)
    thinking = Thinking("<seed:think>", "</seed:think>")
    function_begin, name_end, function_end = "<function=", ">", "</function>"
    key_begin, key_end = "<parameter=", ">"
    value_begin, value_end = "", "</parameter>"
    call_end = "</seed:tool_call>"
    shown = begins
