"""Translates a request to /v1/responses into a chat."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from h2o_server.apis.chat.schema import ChatRequest
from h2o_server.apis.responses.schema import (
    TOOL,
    InputCall,
    InputReasoning,
    InputResult,
    InputText,
    JsonSchemaType,
    OutputText,
    ResponseRequest,
)
from h2o_server.http.field_names import FieldNames

_SAMPLING = ("top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
NAMES = FieldNames(
    {
        "messages": "input",
        "max_tokens": "max_output_tokens",
        "response_format": "text.format",
        "reasoning_effort": "reasoning.effort",
        "response_format.json_schema.schema": "text.format.schema",
    }
)


def chat_of(body: ResponseRequest) -> ChatRequest:
    """The chat, as if requested at /v1/chat/completions."""
    return ChatRequest.model_validate(
        {
            "messages": list(_messages(body)),
            "max_completion_tokens": body.max_output_tokens,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "stream": body.stream,
            "response_format": _format(body),
            "tools": None
            if body.tools is None
            else [_tool(tool.model_dump(include=TOOL)) for tool in body.tools],
            "tool_choice": _choice(body),
            "parallel_tool_calls": body.parallel_tool_calls,
            "reasoning_effort": None if body.reasoning is None else body.reasoning.effort,
            "prefill": body.prefill,
            **{name: getattr(body, name) for name in _SAMPLING},
        }
    )


def _messages(body: ResponseRequest) -> Iterable[dict[str, Any]]:
    if body.instructions:
        yield {"role": "system", "content": body.instructions}
    if isinstance(body.input, str):
        yield {"role": "user", "content": body.input}
        return
    turn: dict[str, Any] | None = None  # the assistant's, whose thoughts and calls are separate items
    thoughts: dict[str, Any] = {}
    for item in body.input:
        if isinstance(item, InputReasoning):
            thoughts = {"reasoning_content": "".join(one.text for one in item.content or ())}
            continue
        if isinstance(item, InputCall):
            turn = turn or {"role": "assistant", "content": None, **thoughts}
            thoughts = {}
            turn.setdefault("tool_calls", []).append(_call(item))
            continue
        spoken = not isinstance(item, InputResult) and item.role == "assistant"
        if turn is None and not spoken and any(thoughts.values()):  # an answer that ended inside its thoughts
            turn = {"role": "assistant", "content": None, **thoughts}
        if turn is not None:
            yield turn
            turn = None
        if isinstance(item, InputResult):
            yield {"role": "tool", "tool_call_id": item.call_id, "content": _text(item.output)}
        elif spoken:
            turn = {"role": "assistant", "content": _text(item.content), **thoughts}
        else:
            yield {"role": item.role, "content": _text(item.content)}
        thoughts = {}
    if turn is not None:
        yield turn


def _text(content: str | list[InputText] | list[InputText | OutputText]) -> str:
    return content if isinstance(content, str) else "".join(content_part.text for content_part in content)


def _call(item: InputCall) -> dict[str, Any]:
    return {"id": item.call_id, "function": {"name": item.name, "arguments": item.arguments}}


def _tool(flat: dict[str, Any]) -> dict[str, Any]:
    return {"type": flat.pop("type"), "function": flat}


def _choice(body: ResponseRequest) -> Any:
    if body.tool_choice is None or isinstance(body.tool_choice, str):
        return body.tool_choice
    return {"type": "function", "function": {"name": body.tool_choice.name}}


def _format(body: ResponseRequest) -> dict[str, Any] | None:
    if body.text is None or body.text.format is None:
        return None
    if not isinstance(body.text.format, JsonSchemaType):
        return body.text.format.model_dump()
    schema = body.text.format.model_dump(by_alias=True)
    return {"type": schema.pop("type"), "json_schema": schema}
