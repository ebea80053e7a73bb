"""/v1/chat/completions, /v1/completions, /v1/responses and /v1/messages."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from h2o_server.apis.chat.format import ChatFormat
from h2o_server.apis.chat.schema import ChatRequest
from h2o_server.apis.completions.format import CompletionFormat
from h2o_server.apis.completions.schema import CompletionRequest
from h2o_server.apis.messages.format import MessageFormat
from h2o_server.apis.messages.input import NAMES as OF_MESSAGES
from h2o_server.apis.messages.input import chat_of as chat_of_message
from h2o_server.apis.messages.schema import MessageRequest, TokenCountRequest
from h2o_server.apis.responses.format import ResponseFormat
from h2o_server.apis.responses.input import NAMES, chat_of
from h2o_server.apis.responses.schema import ResponseRequest
from h2o_server.apis.shared.answers import (
    AnthropicError,
    ChatCompletion,
    MessageObject,
    ResponseObject,
    TextCompletion,
    TokenCount,
)
from h2o_server.http.problems import MESSAGES
from h2o_server.service import Service

_CHAT, _TEXT, _RESPONSE = "/chat/completions", "/completions", "/responses"
PATHS = tuple(prefix + path for path in (_CHAT, _TEXT, _RESPONSE) for prefix in ("/v1", ""))

# With stream: true. The data of each event is a chunk as JSON, or an error object, and [DONE] at the end.
_EVENT = {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}
_FAILURES: dict[int | str, dict[str, Any]] = {status: {"model": AnthropicError} for status in ("4XX", "5XX")}


def add_routes(router: APIRouter, service: Service) -> None:
    alias = service.settings.alias

    @router.post(_CHAT, include_in_schema=False)  # for clients whose base URL ends before /v1
    @router.post("/v1" + _CHAT, responses=answers(ChatCompletion))
    async def chat_completions(http: Request, body: ChatRequest) -> Response:
        """Answer a conversation."""
        builder = service.builder
        return await service.handler.answer(
            http,
            lambda: builder.chat(body),
            ChatFormat(body, alias, service.grammars.token_bytes, service.model.speech),
            constrain=builder.constraint,
            stream=bool(body.stream),
            progress=bool(body.return_progress),
        )

    @router.post(_TEXT, include_in_schema=False)
    @router.post("/v1" + _TEXT, responses=answers(TextCompletion))
    async def completions(http: Request, body: CompletionRequest) -> Response:
        """Continue a text."""
        builder = service.builder
        return await service.handler.answer(
            http,
            lambda: builder.completion(body),
            CompletionFormat(body, alias, service.grammars.token_bytes),
            constrain=builder.constraint,
            stream=bool(body.stream),
            progress=bool(body.return_progress),
        )

    @router.post(_RESPONSE, include_in_schema=False)
    @router.post("/v1" + _RESPONSE, responses=answers(ResponseObject))
    async def responses(http: Request, body: ResponseRequest) -> Response:
        """Answer a text or a list of items; nothing is kept that a later request could name."""
        builder, chat = service.builder, chat_of(body)
        return await service.handler.answer(
            http,
            lambda: NAMES.choices(body, lambda: builder.chat(chat)),
            ResponseFormat(body, chat, alias, service.model.speech),
            constrain=builder.constraint,
            stream=bool(body.stream),
            progress=False,
        )


def add_message_routes(router: APIRouter, service: Service) -> None:
    @router.post(MESSAGES, responses=answers(MessageObject) | _FAILURES)
    async def messages(http: Request, body: MessageRequest) -> Response:
        """Answer a conversation, in Anthropic's form."""
        builder, chat = service.builder, chat_of_message(body)
        return await service.handler.answer(
            http,
            lambda: OF_MESSAGES.choices(body, lambda: builder.chat(chat)),
            MessageFormat(chat, service.settings.alias, service.model.speech),
            constrain=builder.constraint,
            stream=bool(body.stream),
            progress=False,
        )

    @router.post(MESSAGES + "/count_tokens", responses=_FAILURES)
    async def count_tokens(http: Request, body: TokenCountRequest) -> TokenCount:
        """How many tokens a prompt has, also one that is longer than the context."""
        builder, chat, most = service.builder, chat_of_message(body), service.room.tokens
        choices = await service.handler.look_up(
            http, lambda: OF_MESSAGES.choices(body, lambda: builder.chat(chat, most))
        )
        return TokenCount(input_tokens=len(choices.requests[0].prompt.ids))


def answers(model: Any) -> dict[int | str, dict[str, Any]]:
    return {200: {"model": model, "content": {"text/event-stream": {"itemSchema": _EVENT}}}}
