"""Tool calls in Llama 3's format: the whole answer is {"name": …, "parameters": {…}}, several after a ";".

A model that was trained for tools begins its answer with that object, or with the special token
<|python_tag|>, which decoding leaves out.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Sequence
from typing import Any

from h2o_runtime.server.schemas.chat import Tool

_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}


def parse_calls(text: str, names: Collection[str]) -> list[dict[str, Any]]:
    """The tool calls that `text` consists of, in OpenAI's form; empty when it is anything else."""
    decoder = json.JSONDecoder()
    calls: list[dict[str, Any]] = []
    rest = text.strip().removeprefix("<|python_tag|>").lstrip()
    while rest:
        try:
            value, end = decoder.raw_decode(rest)
        except (ValueError, RecursionError):
            return []
        call = _call(value, names)
        if call is None:
            return []
        calls.append(call)
        rest = rest[end:].lstrip().removeprefix(";").lstrip()
    return calls


def may_become_call(text: str) -> bool:
    """Whether an answer that begins with `text` may still turn out to be a tool call."""
    start = text.lstrip()
    return not start or start.startswith("{") or "<|python_tag|>".startswith(start[:14])


def call_schema(tools: Sequence[Tool]) -> dict[str, Any]:
    """The JSON schema of a call of one of `tools`."""
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool.function.name},
                "parameters": tool.function.parameters or _NO_PARAMETERS,
            },
            "required": ["name", "parameters"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    definitions: dict[str, Any] = {}
    for tool in tools:  # references in a schema start at its root, which is another one here
        definitions |= (tool.function.parameters or {}).get("$defs", {})
    root = calls[0] if len(calls) == 1 else {"anyOf": calls}
    return {**root, "$defs": definitions} if definitions else root


def _call(value: Any, names: Collection[str]) -> dict[str, Any] | None:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or value["name"] not in names:
        return None
    parameters = value.get("parameters", value.get("arguments"))
    if not isinstance(parameters, dict):
        return None
    function = {"name": value["name"], "arguments": json.dumps(parameters, ensure_ascii=False)}
    return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}
