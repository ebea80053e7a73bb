"""The calls of MiniMax M2: tags for a list of calls, each function and each parameter."""

from __future__ import annotations

from h2o_runtime.answers.dialects.xml_parts import XmlDialect


class MiniMax(XmlDialect):
    name = "minimax"
    title = "MiniMax M2"
    begins = ("<minimax:tool_call>",)
    ends = ("</minimax:tool_call>",)
    function_begin, name_end, function_end = '<invoke name="', '">', "</invoke>"
    key_begin, key_end = '<parameter name="', '">'
    value_begin, value_end = "", "</parameter>"
    call_end = "</minimax:tool_call>"
    shown = begins
