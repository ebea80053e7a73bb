"""A function that tests let the model call, in the words of each API."""

from __future__ import annotations

from typing import Any

ASK = "How warm is it in Oslo?"
TALK = [{"role": "user", "content": ASK}]
PARAMETERS = {
    "type": "object",
    "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["days"],
    "additionalProperties": False,
}
NAMED = {"name": "get_weather", "description": "How warm it is"}
CHAT: dict[str, Any] = {"type": "function", "function": {**NAMED, "parameters": PARAMETERS}}
RESPONSES = {"type": "function", **NAMED, "strict": True, "parameters": PARAMETERS}
MESSAGES = {**NAMED, "input_schema": PARAMETERS}
