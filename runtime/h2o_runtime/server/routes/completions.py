"""/v1/chat/completions and /v1/completions."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from h2o_runtime.server.chat_format import ChatFormat
from h2o_runtime.server.completion_format import CompletionFormat
from h2o_runtime.server.schemas.chat import ChatRequest
from h2o_runtime.server.schemas.completion import CompletionRequest
from h2o_runtime.server.schemas.responses import ChatCompletion, TextCompletion
from h2o_runtime.server.service import Service

_CHAT, _TEXT = PATHS = ("/v1/chat/completions", "/v1/completions")

# With stream: true. The data of each event is a chunk as JSON, or an error object, and [DONE] at the end.
_EVENT = {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}


def add_routes(router: APIRouter, service: Service) -> None:
    alias = service.settings.alias

    @router.post(_CHAT, responses=_answers(ChatCompletion))
    async def chat_completions(http: Request, body: ChatRequest) -> Response:
        """Answer a conversation."""
        builder = service.builder
        return await service.handler.answer(
            http,
            lambda: builder.chat(body),
            ChatFormat(body, alias, service.grammars.token_bytes),
            constrain=lambda cancelled: builder.chat_constraint(body, cancelled),
            stream=bool(body.stream),
            progress=bool(body.return_progress),
        )

    @router.post(_TEXT, responses=_answers(TextCompletion))
    async def completions(http: Request, body: CompletionRequest) -> Response:
        """Continue a text."""
        builder = service.builder
        return await service.handler.answer(
            http,
            lambda: builder.completion(body),
            CompletionFormat(body, alias, service.grammars.token_bytes),
            stream=bool(body.stream),
            progress=bool(body.return_progress),
        )


def _answers(model: Any) -> dict[int | str, dict[str, Any]]:
    return {200: {"model": model, "content": {"text/event-stream": {"itemSchema": _EVENT}}}}
