"""Tool calls as a JSON schema, for answers that must be a call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from h2o_runtime.server.schemas.chat import Tool

_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}


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
    for tool in tools:  # references in a schema start at its root, which differs here
        definitions |= (tool.function.parameters or {}).get("$defs", {})
    root = calls[0] if len(calls) == 1 else {"anyOf": calls}
    return {**root, "$defs": definitions} if definitions else root
