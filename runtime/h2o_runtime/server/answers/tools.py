"""The functions that a chat may call, and calls as a JSON schema, for answers that must be one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from h2o_runtime.errors import ConfigError
from h2o_runtime.server.apis.chat.schema import AssistantMessage, ChatRequest, Tool, ToolMessage

_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}


def check_tools(body: ChatRequest) -> None:
    """Raises ConfigError for functions of one name, and for results of calls that nobody made."""
    names: set[str] = set()
    for tool in body.tools or ():
        name = tool.function.name
        if name in names:
            raise ConfigError(
                f"tools has two functions with the name {name!r}: give each its own", field="tools"
            )
        names.add(name)
    calls: set[str] = set()
    for message in body.messages:
        if isinstance(message, AssistantMessage):
            calls.update(call.id for call in message.tool_calls or ())
        elif isinstance(message, ToolMessage) and message.tool_call_id not in calls:
            raise ConfigError(
                f"messages has a tool's result for the call {message.tool_call_id!r}, which no message before it "
                "makes: send the assistant's message with that call too",
                field="messages",
            )


def call_schema(tools: Sequence[Tool]) -> dict[str, Any]:
    """The JSON schema of a call of one of `tools`."""
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool.function.name},
                "parameters": {**(tool.function.parameters or _NO_PARAMETERS), "type": "object"},
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
