"""The calls of Kimi K2: between special tokens, an id that contains the function's name, and its arguments."""

from __future__ import annotations

import string

from h2o_runtime.answers.dialects import json_parts
from h2o_runtime.answers.dialects.answer import Answer
from h2o_runtime.answers.dialects.dialect import Dialect
from h2o_runtime.answers.dialects.incoming import Incoming, Wait

_ALL_BEGIN, _ALL_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_BEGIN, _ARGUMENTS, _END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_KIND = "functions."


class Kimi(Dialect):
    name = "kimi"
    title = "Kimi K2"
    begins = (_BEGIN,)
    dropped = (_ALL_BEGIN, _ALL_END)
    ends = (_ARGUMENTS, _END)
    shown = (_ALL_BEGIN,)
    before, after, closing = f"{_ALL_BEGIN}{_BEGIN}{_KIND}", f":0{_ARGUMENTS}", _END + _ALL_END

    def call(self, text: Incoming, answer: Answer) -> Wait[bool]:
        yield from text.take(_KIND)
        name = yield from json_parts.bare_name(text, answer)
        if not name or (yield from text.take(":")) is None:
            return False
        id = f"{_KIND}{name}:{yield from text.take_any(string.digits)}"
        if (yield from text.take(_ARGUMENTS)) is None:
            return False
        begun = yield from json_parts.arguments(text, answer, name, id)
        if begun:
            yield from text.take(_END)
        return begun
