"""The calls of Gemma 4 and FunctionGemma: objects like JSON's, with bare keys, and with marks around texts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from h2o_runtime.answers.dialects import json_parts
from h2o_runtime.answers.dialects.answer import Answer, Schema
from h2o_runtime.answers.dialects.dialect import Dialect, Thinking
from h2o_runtime.answers.dialects.incoming import Incoming, Wait
from h2o_runtime.answers.dialects.lark import Lark
from h2o_runtime.answers.dialects.strict_json import as_json

_LONGEST_KEY = 1000
_DEEPEST = 50
_SCALARS: Schema = {"type": ["number", "boolean", "null"]}
Tell = Callable[[str], None]


class Gemma4(Dialect):
    """quote: before and after a text."""

    name = "gemma4"
    title = "Gemma 4"
    begins = ("<|tool_call>",)
    ends: ClassVar[tuple[str, ...]] = ("<tool_call|>", '<|"|>', "<|channel>")
    thinking = Thinking("<|channel>thought\n", "<channel|>")
    quote: ClassVar[str] = '<|"|>'
    shown = begins
    before, after, closing = "<|tool_call>call:", "", "<tool_call|>"

    def arguments(self, arguments: Mapping[str, Any]) -> str:
        return self._written(arguments)

    def arguments_grammar(self, schema: Schema, lark: Lark) -> str:
        return self._grammar({"type": "object", **schema}, schema.get("$defs", {}), lark, 0)

    def call(self, text: Incoming, answer: Answer) -> Wait[bool]:
        if (yield from text.take("call:")) is None:
            return False
        name = yield from json_parts.bare_name(text, answer)
        if not name or not (yield from text.next_is("{")):
            return False
        text.release()
        answer.begin(name)
        if (yield from self._value(text, answer.arguments, 0)):
            answer.end_call()
        yield from text.take(self.closing)
        return True

    def _value(self, text: Incoming, tell: Tell, depth: int) -> Wait[bool]:
        """Pass a value on as JSON → whether it is there up to its end."""
        yield from text.blanks()
        if (yield from text.take(self.quote)) is not None:
            return (yield from self._text(text, tell))
        begin = yield from text.take("{", "[")
        if begin is None:
            word, after = yield from text.all_until(",", "]", "}", most=_LONGEST_KEY)
            if after is None:
                return False
            text.give_back(len(after))
            tell(as_json(word := word.strip(), word))
            return True
        end = "}" if begin == "{" else "]"
        tell(begin)
        first = True
        while depth < _DEEPEST:
            yield from text.blanks()
            if (yield from text.take(end)) is not None:
                tell(end)
                return True
            if not first and (yield from text.take(",")) is None:
                return False
            tell("" if first else ", ")
            first = False
            if begin == "{" and not (yield from self._key(text, tell)):
                return False
            if not (yield from self._value(text, tell, depth + 1)):
                return False
        return False

    def _key(self, text: Incoming, tell: Tell) -> Wait[bool]:
        yield from text.blanks()
        key, end = yield from text.all_until(":", most=_LONGEST_KEY)
        tell(f"{json.dumps(key.replace(self.quote, '').strip(), ensure_ascii=False)}: " if end else "")
        return end is not None

    def _text(self, text: Incoming, tell: Tell) -> Wait[bool]:
        tell('"')
        while True:
            piece, mark = yield from text.until(self.quote)
            tell(json.dumps(piece, ensure_ascii=False)[1:-1] + ('"' if mark else ""))
            if mark is not None or not piece:
                return mark is not None

    def _written(self, value: Any) -> str:
        if isinstance(value, str):
            return f"{self.quote}{value}{self.quote}"
        if isinstance(value, Mapping):
            return (
                "{"
                + ",".join(f"{key}:{self._written(member)}" for key, member in sorted(value.items()))
                + "}"
            )
        if isinstance(value, list):
            return "[" + ",".join(map(self._written, value)) + "]"
        return json.dumps(value)

    def _grammar(self, schema: Any, shared: Schema, lark: Lark, depth: int) -> str:
        """A value of a schema; where the schema says too little, a text or a scalar."""
        text = f"{lark.literal(self.quote)} {lark.text_before(self.quote)}"
        if not isinstance(schema, Mapping) or depth > _DEEPEST:
            return lark.either([text, lark.json(_SCALARS)])
        if isinstance(reference := schema.get("$ref"), str):
            return self._grammar(shared.get(reference.rpartition("/")[2]), shared, lark, depth + 10)
        if "enum" in schema or "const" in schema:
            values = schema.get("enum", [schema.get("const")])
            return lark.either([lark.literal(self._written(one)) for one in values])
        if schema.get("type") == "object":
            needed = schema.get("required", ())
            members = [
                (f"{lark.literal(f'{key}:')} {self._grammar(member, shared, lark, depth + 1)}", key in needed)
                for key, member in sorted(schema.get("properties", {}).items())
            ]
            return f'"{{" {lark.listed(members, ",")} "}}"'
        if schema.get("type") == "array":
            item = lark.rule(self._grammar(schema.get("items"), shared, lark, depth + 1))
            return f'"[" ({item} ("," {item})*)? "]"'
        if schema.get("type") in ("integer", "number", "boolean", "null"):
            return lark.json(schema)
        return text if schema.get("type") == "string" else lark.either([text, lark.json(_SCALARS)])


class FunctionGemma(Gemma4):
    name = "functiongemma"
    title = "FunctionGemma"
    begins = ("<start_function_call>",)
    ends = ("<end_function_call>", "<escape>")
    thinking = Thinking("<think>", "</think>")
    quote = "<escape>"
    shown = begins
    before, closing = "<start_function_call>call:", "<end_function_call>"
