"""Qwen3-Coder's calls, which Qwen 3.5 and Nemotron 3 have too: tags for the function and for each parameter."""

from __future__ import annotations

from h2o_runtime.answers.dialects.xml_parts import XmlDialect


class QwenCoder(XmlDialect):
    name = "qwen-coder"
    title = "Qwen3-Coder, Qwen 3.5, Nemotron 3"
    begins = ("<tool_call>",)
    ends = ("</tool_call>",)
    function_begin, name_end, function_end = "<function=", ">", "</function>"
    key_begin, key_end = "<parameter=", ">\n"
    value_begin, value_end = "", "\n</parameter>"
    call_end = "</tool_call>"
    shown = ("<function=", "<parameter=")
