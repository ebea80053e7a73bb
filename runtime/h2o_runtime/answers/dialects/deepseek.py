"""DeepSeek's calls: between special tokens, the function's name and its arguments. R1 writes a block of code."""

from __future__ import annotations

from typing import ClassVar

from h2o_runtime.answers.dialects import json_parts
from h2o_runtime.answers.dialects.answer import Answer
from h2o_runtime.answers.dialects.dialect import Dialect
from h2o_runtime.answers.dialects.incoming import Incoming, Wait

_ALL_BEGIN, _ALL_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_BEGIN, _SEPARATOR, _END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_KIND, _CODE, _CODE_END = "function", "```json\n", "\n```"


class DeepSeek(Dialect):
    name = "deepseek"
    title = "DeepSeek V3.1"
    begins = (_BEGIN,)
    dropped = (_ALL_BEGIN, _ALL_END)
    ends = (_SEPARATOR, _END)
    shown: ClassVar[tuple[str, ...]] = (_ALL_BEGIN,)
    before, after, closing = _ALL_BEGIN + _BEGIN, _SEPARATOR, _END + _ALL_END

    def call(self, text: Incoming, answer: Answer) -> Wait[bool]:
        name = yield from json_parts.bare_name(text, answer)
        if not name or (yield from text.take(_SEPARATOR)) is None:
            return False
        begun = yield from json_parts.arguments(text, answer, name)
        if begun:
            yield from text.blanks()
            yield from text.take(_END)
        return begun


class DeepSeekR1(DeepSeek):
    name = "deepseek-r1"
    title = "DeepSeek V3 and R1"
    shown = (_ALL_BEGIN, "```json")
    before, after = f"{_ALL_BEGIN}{_BEGIN}{_KIND}{_SEPARATOR}", f"\n{_CODE}"
    closing = f"{_CODE_END}{_END}{_ALL_END}"

    def call(self, text: Incoming, answer: Answer) -> Wait[bool]:
        if (yield from text.take(_KIND)) is None or (yield from text.take(_SEPARATOR)) is None:
            return False
        name = yield from json_parts.bare_name(text, answer)
        yield from text.blanks()
        if not name or (yield from text.take(_CODE)) is None:
            return False
        begun = yield from json_parts.arguments(text, answer, name)
        if begun:
            yield from text.blanks()
            yield from text.take(_CODE_END.strip())
            yield from text.take(_END)
        return begun
