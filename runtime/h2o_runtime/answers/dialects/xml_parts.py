"""Calls whose parameters are tags of their own, read as the JSON object that clients expect.

A text is written as it is; any other value as JSON. The function's schema says which of the two a parameter is.
"""

from __future__ import annotations

import json
from abc import ABC
from collections.abc import Mapping
from typing import Any, ClassVar

from h2o_runtime.answers.dialects import json_parts
from h2o_runtime.answers.dialects.answer import Answer, Schema
from h2o_runtime.answers.dialects.dialect import Dialect
from h2o_runtime.answers.dialects.incoming import Incoming, Wait
from h2o_runtime.answers.dialects.lark import Lark, optional
from h2o_runtime.answers.dialects.strict_json import as_json

_LONGEST_KEY = 1000
_LONGEST_VALUE = 1 << 20
_WORDS = {"true": True, "false": False, "null": None, "none": None}  # some models write Python's


class XmlDialect(Dialect, ABC):
    """A dialect of tags. Only the first of `begins` is written.

    function_begin  before a function's name; empty: the name follows the call's mark at once
    function_end    after its parameters
    name_end        after a function's name
    key_begin, key_end, value_begin, value_end  around a parameter's name and value; blanks may stand around them
    between         what is written after the call's mark, after the name, and after every parameter
    """

    function_begin: ClassVar[str] = ""
    function_end: ClassVar[str] = ""
    name_end: ClassVar[str] = ""
    key_begin: ClassVar[str]
    key_end: ClassVar[str]
    value_begin: ClassVar[str]
    value_end: ClassVar[str]
    call_end: ClassVar[str]

    def opening(self, name: str) -> str:
        begin = f"\n{self.function_begin}" if self.function_begin else ""
        return f"{self.begins[0]}{begin}{name}{self.name_end}\n"

    @property
    def closing(self) -> str:  # type: ignore[override]
        end = f"{self.function_end}\n" if self.function_end else ""
        return end + self.call_end

    def arguments(self, arguments: Mapping[str, Any]) -> str:
        return "".join(
            self._before(key)
            + (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
            + f"{self.value_end}\n"
            for key, value in arguments.items()
        )

    def arguments_grammar(self, schema: Schema, lark: Lark) -> str:
        parts = []
        shared = {"$defs": schema["$defs"]} if "$defs" in schema else {}
        for key, member in schema.get("properties", {}).items():
            value = self._value_grammar(member, shared, lark)
            part = f'{lark.literal(self._before(key))} {value} "\\n"'
            parts.append(part if key in schema.get("required", ()) else optional(part))
        return " ".join(parts)

    def _value_grammar(self, schema: Any, shared: Schema, lark: Lark) -> str:
        """A parameter's value and its end."""
        end = lark.literal(self.value_end)
        if not _is_text(schema):
            return f"{lark.json({**schema, **shared} if isinstance(schema, Mapping) else {})} {end}"
        if "enum" in schema:
            return f"{lark.either([lark.literal(word) for word in schema['enum']])} {end}"
        return lark.text_before(self.value_end)

    def call(self, text: Incoming, answer: Answer) -> Wait[bool]:
        begun = False
        while True:
            yield from text.blanks()
            if self.function_begin and (yield from text.take(self.function_begin)) is None:
                break
            name = yield from json_parts.bare_name(text, answer)
            if not name or not (yield from self._ends_name(text)):
                break
            text.release()
            answer.begin(name)
            begun = True
            yield from self._parameters(text, answer, answer.functions[name])
            if not self.function_begin:
                break
            text.hold()
        if begun:
            yield from text.blanks()
            if (yield from text.take(self.call_end)) is None:
                answer.text(text.held())
        return begun

    def _before(self, key: str) -> str:
        return f"{self.key_begin}{key}{self.key_end}{self.value_begin}"

    def _ends_name(self, text: Incoming) -> Wait[bool]:
        if self.name_end:
            return (yield from text.take(self.name_end)) is not None
        return (yield from text.peek()) in ("\n", "<")

    def _parameters(self, text: Incoming, answer: Answer, schema: Schema) -> Wait[None]:
        answer.arguments("{")
        known = schema.get("properties", {})
        count = 0
        while True:
            yield from text.blanks()
            if (yield from text.take(self.key_begin)) is None:
                break
            key, end = yield from text.all_until(self.key_end.strip(), most=_LONGEST_KEY)
            if end is None:
                return
            if self.value_begin:
                yield from text.blanks()
                yield from text.take(self.value_begin.strip())
            answer.arguments(f"{', ' if count else ''}{json.dumps(key, ensure_ascii=False)}: ")
            if not (yield from self._value(text, answer, known.get(key))):
                return
            count += 1
        if not (yield from text.peek()):
            return  # cut
        yield from text.take(self.function_end)
        answer.arguments("}")
        answer.end_call()

    def _value(self, text: Incoming, answer: Answer, schema: Any) -> Wait[bool]:
        """Pass a value on as JSON → whether its end was there."""
        end = self.value_end.strip()
        ends = (self.value_end, end) if end != self.value_end else (end,)
        if self.value_end.startswith("\n"):
            yield from text.take("\n")
        if not _is_text(schema):
            written, mark = yield from text.all_until(*ends, most=_LONGEST_VALUE)
            if mark is not None:
                answer.arguments(_as_json(written))
            return mark is not None
        answer.arguments('"')
        while True:
            piece, mark = yield from text.until(*ends)
            answer.arguments(json.dumps(piece, ensure_ascii=False)[1:-1])
            if mark is not None:
                answer.arguments('"')
                return True
            if not piece:
                return False


def _is_text(schema: Any) -> bool:
    """Whether a parameter's value is written as it is."""
    if not isinstance(schema, Mapping):
        return False
    words = schema.get("enum")
    if words is None:
        return schema.get("type") == "string"
    return bool(words) and all(isinstance(word, str) and word for word in words)


def _as_json(written: str) -> str:
    word = written.strip()
    return as_json(word, _WORDS.get(word.lower(), written))
