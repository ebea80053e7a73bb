"""The calls of GLM since 4.5: the function's name, then pairs of tags for each argument."""

from __future__ import annotations

from h2o_runtime.answers.dialects.xml_parts import XmlDialect


class Glm(XmlDialect):
    name = "glm"
    title = "GLM-4.5, 4.6, 4.7 and 5"
    begins = ("<tool_call>",)
    ends = ("</tool_call>",)
    key_begin, key_end = "<arg_key>", "</arg_key>"
    value_begin, value_end = "\n<arg_value>", "</arg_value>"
    call_end = "</tool_call>"
    shown = ("<arg_key>",)
