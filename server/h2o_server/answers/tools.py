"""The functions that a chat may call, or must."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from h2o_runtime.errors import ConfigError
from h2o_server.apis.chat.schema import AssistantMessage, ChatRequest, Tool, ToolChoice, ToolMessage
from h2o_server.apis.shared.types import is_text

_NO_PARAMETERS: Mapping[str, Any] = {"properties": {}}


def check_tools(body: ChatRequest) -> None:
    """Raises ConfigError for functions of one name or without text, and for results of calls that nobody made."""
    names: set[str] = set()
    for tool in body.tools or ():
        name = tool.function.name
        if name in names:
            raise ConfigError(
                f"tools has two functions with the name {name!r}: give each its own", field="tools"
            )
        names.add(name)
    for tool in usable_tools(body):
        if not is_text([tool.function.description, tool.function.parameters]):
            raise ConfigError(
                f"tools: the function {tool.function.name!r} has half of a surrogate pair, which is no character: "
                "leave it out",
                field="tools",
            )
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


def usable_tools(body: ChatRequest) -> list[Tool]:
    """The functions that the answer may call."""
    return [] if body.tool_choice == "none" else body.tools or []


def forced_tools(body: ChatRequest) -> list[Tool]:
    """The functions one of which the answer must call; empty if the answer is free. Raises ConfigError."""
    if body.tool_choice is None or body.tool_choice in ("none", "auto"):
        return []
    if not body.tools:
        raise ConfigError(
            "tool_choice requires a call, but tools is empty: add a function to tools", field="tool_choice"
        )
    if isinstance(body.tool_choice, ToolChoice):
        name = body.tool_choice.function.name
        chosen = [tool for tool in body.tools if tool.function.name == name]
        if not chosen:
            raise ConfigError(f"tool_choice names {name!r}, which is not in tools", field="tool_choice")
        return chosen
    return body.tools


def parameters(tool: Tool) -> Mapping[str, Any]:
    """The JSON schema of a call's arguments."""
    return {**(tool.function.parameters or _NO_PARAMETERS), "type": "object"}
