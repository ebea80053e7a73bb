"""/v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from h2o_server.apis.messages.format import MessageFormat
from h2o_server.apis.messages.input import NAMES, chat_of
from h2o_server.apis.messages.schema import MessageRequest, TokenCountRequest
from h2o_server.apis.routes import answers
from h2o_server.apis.shared.answers import AnthropicError, MessageObject, TokenCount
from h2o_server.http.problems import MESSAGES
from h2o_server.service import Service

_FAILURES: dict[int | str, dict[str, Any]] = {status: {"model": AnthropicError} for status in ("4XX", "5XX")}


def add_routes(router: APIRouter, service: Service) -> None:
    @router.post(MESSAGES, responses=answers(MessageObject) | _FAILURES)
    async def messages(http: Request, body: MessageRequest) -> Response:
        """Answer a conversation, in Anthropic's form."""
        builder, chat = service.builder, chat_of(body)
        return await service.handler.answer(
            http,
            lambda: NAMES.choices(body, lambda: builder.chat(chat)),
            MessageFormat(chat, service.settings.alias, service.model.speech),
            constrain=builder.constraint,
            stream=bool(body.stream),
            progress=False,
        )

    @router.post(MESSAGES + "/count_tokens", responses=_FAILURES)
    async def count_tokens(http: Request, body: TokenCountRequest) -> TokenCount:
        """How many tokens a prompt has, also one that is longer than the context."""
        builder, chat, most = service.builder, chat_of(body), service.room.tokens
        choices = await service.handler.look_up(
            http, lambda: NAMES.choices(body, lambda: builder.chat(chat, most))
        )
        return TokenCount(input_tokens=len(choices.requests[0].prompt.ids))
