"""Translates a request to /v1/messages into a chat."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from h2o_server.apis.chat.schema import ChatRequest, TextContentPart
from h2o_server.apis.messages.documents import text_of
from h2o_server.apis.messages.schema import (
    AssistantTurn,
    ClientTool,
    MessageRequest,
    OneTool,
    SystemTurn,
    Thinking,
    TokenCountRequest,
    ToolResult,
    ToolUse,
    UserTurn,
)
from h2o_server.http.field_names import FieldNames

NAMES = FieldNames(
    {
        "stop": "stop_sequences",
        "continue_final_message": "messages",
        "response_format": "output_config.format",
        "response_format.json_schema.schema": "output_config.format.schema",
        "reasoning_effort": "output_config.effort",
        "parameters": "input_schema",
    }
)


def chat_of(body: TokenCountRequest) -> ChatRequest:
    """The chat, as if requested at /v1/chat/completions.

    If the last message is the assistant's, the answer continues it.
    """
    return ChatRequest.model_validate(
        {
            "messages": list(_messages(body)),
            "continue_final_message": True if body.messages[-1].role == "assistant" else None,
            "tools": None if body.tools is None else [_tool(tool) for tool in body.tools],
            "tool_choice": _choice(body),
            "parallel_tool_calls": _parallel(body),
            "response_format": _format(body),
            "chat_template_kwargs": _thinking(body),
            "reasoning_effort": None if body.output_config is None else body.output_config.effort,
            **(_generation(body) if isinstance(body, MessageRequest) else {}),
        }
    )


def _generation(body: MessageRequest) -> dict[str, Any]:
    return {
        "max_tokens": body.max_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "stop": body.stop_sequences or None,
        "stream": body.stream,
        "prefill": body.prefill,
    }


def _messages(body: TokenCountRequest) -> Iterable[dict[str, Any]]:
    if body.system:
        yield {"role": "system", "content": _parts(body.system)}
    for turn in body.messages:
        if isinstance(turn, SystemTurn):
            yield {"role": "system", "content": _parts(turn.content)}
        else:
            yield from _user(turn) if isinstance(turn, UserTurn) else [_assistant(turn)]


def _user(turn: UserTurn) -> Iterable[dict[str, Any]]:
    """Tool results of a turn are separate messages."""
    if isinstance(turn.content, str):
        yield {"role": "user", "content": turn.content}
        return
    for block in turn.content:
        if isinstance(block, ToolResult):
            text = ("Error: " if block.is_error else "") + text_of(block.content or "")
            yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": text}
    texts = [block for block in turn.content if not isinstance(block, ToolResult)]
    if texts or not turn.content:
        yield {"role": "user", "content": text_of(texts)}


def _assistant(turn: AssistantTurn) -> dict[str, Any]:
    if isinstance(turn.content, str):
        return {"role": "assistant", "content": turn.content}
    texts = [block for block in turn.content if isinstance(block, TextContentPart)]
    calls = [_call(block) for block in turn.content if isinstance(block, ToolUse)]
    message: dict[str, Any] = {"role": "assistant", "content": text_of(texts) if texts or not calls else None}
    if thoughts := "".join(block.thinking for block in turn.content if isinstance(block, Thinking)):
        message["reasoning_content"] = thoughts
    return message | {"tool_calls": calls} if calls else message


def _parts(content: str | Sequence[TextContentPart]) -> str | list[dict[str, str]]:
    """Blocks stay apart: one of them may be left alone."""
    return (
        content if isinstance(content, str) else [{"type": "text", "text": block.text} for block in content]
    )


def _call(use: ToolUse) -> dict[str, Any]:
    return {"id": use.id, "function": {"name": use.name, "arguments": use.input}}


def _tool(tool: ClientTool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    return {"type": "function", "function": function | {"strict": tool.strict}}


def _choice(body: TokenCountRequest) -> Any:
    if body.tool_choice is None:
        return None
    if isinstance(body.tool_choice, OneTool):
        return {"type": "function", "function": {"name": body.tool_choice.name}}
    return "required" if body.tool_choice.type == "any" else body.tool_choice.type


def _parallel(body: TokenCountRequest) -> bool | None:
    return False if body.tool_choice is not None and body.tool_choice.disable_parallel_tool_use else None


def _thinking(body: TokenCountRequest) -> dict[str, bool] | None:
    """The switch of thoughts, by the names that templates have for it."""
    if body.thinking is None:
        return None
    return dict.fromkeys(("enable_thinking", "thinking"), body.thinking.type != "disabled")


def _format(body: TokenCountRequest) -> dict[str, Any] | None:
    if body.output_config is None or body.output_config.format is None:
        return None
    schema = {"name": "answer", "schema": body.output_config.format.schema_}
    return {"type": "json_schema", "json_schema": schema}
