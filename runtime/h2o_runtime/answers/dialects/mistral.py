"""Mistral's calls: a list of JSON objects, or since 2025 the function's name and its arguments."""

from __future__ import annotations

import secrets
import string
from typing import ClassVar

from h2o_runtime.answers.dialects import json_parts
from h2o_runtime.answers.dialects.answer import Answer
from h2o_runtime.answers.dialects.dialect import Dialect, Thinking
from h2o_runtime.answers.dialects.incoming import Incoming, Wait

_LETTERS = string.ascii_letters + string.digits
_ID_LENGTH = 9  # the templates refuse any other


class Mistral(Dialect):
    name = "mistral"
    title = "Mistral and Mixtral up to 2024"
    begins = ("[TOOL_CALLS]",)
    ends = ("[ARGS]", "[CALL_ID]")
    thinking = Thinking("[THINK]", "[/THINK]")
    shown: ClassVar[tuple[str, ...]] = begins
    before, after, closing = '[TOOL_CALLS][{"name": ', ', "arguments": ', "}]"
    quoted: ClassVar[bool] = True

    def new_id(self) -> str:
        return "".join(secrets.choice(_LETTERS) for _ in range(_ID_LENGTH))

    def call(self, text: Incoming, answer: Answer) -> Wait[bool]:
        yield from text.blanks()
        if (yield from text.next_is("[{")) or (yield from text.next_is("{")):
            return (yield from json_parts.calls(text, answer))
        name = yield from json_parts.bare_name(text, answer)
        if not name:
            return False
        id = None
        if (yield from text.take("[CALL_ID]")) is not None:
            id = (yield from text.take_any(_LETTERS)) or None
        yield from text.take("[ARGS]")
        yield from text.blanks()
        return (yield from json_parts.arguments(text, answer, name, id))


class Ministral(Mistral):
    name = "ministral"
    title = "Mistral Small 3.2, Magistral, Ministral 3, Devstral"
    shown = ("[TOOL_CALLS]", "[ARGS]")
    before, quoted, after, closing = "[TOOL_CALLS]", False, "[ARGS]", ""
