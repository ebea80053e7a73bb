"""/tokenize and /detokenize."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from h2o_runtime.errors import ConfigError
from h2o_server.apis.shared.types import Count, Strict
from h2o_server.request_builder import check_ids
from h2o_server.service import Service

_BLOCK = 1000  # tokens


class TokenizeRequest(Strict):
    content: str
    add_special: bool = Field(False, description="Begin with BOS if the checkpoint uses one.")
    with_pieces: bool = Field(False, description="Also return each token's text.")


class TokenWithText(BaseModel):
    """piece: the token's text, or its bytes where it holds only a part of a character."""

    id: int
    piece: str | list[int]


class TokenizeResponse(BaseModel):
    tokens: list[int] | list[TokenWithText]


class DetokenizeRequest(Strict):
    tokens: list[Count]


class DetokenizeResponse(BaseModel):
    content: str


def add_routes(router: APIRouter, service: Service) -> None:
    @router.post("/tokenize", response_model=TokenizeResponse)
    async def tokenize(http: Request, body: TokenizeRequest) -> Response:
        """The token ids of a text; special tokens written out in it become their ids."""
        tokenizer, grammars, room = service.model.tokenizer, service.grammars, service.room

        def answer() -> bytes:
            if len(body.content) > room.text_bytes:
                raise ConfigError(
                    f"content is longer than the {room.text_bytes} bytes that the context can hold",
                    field="content",
                )
            ids = tokenizer.encode_within(body.content, room.tokens, add_special_tokens=body.add_special)
            if not body.with_pieces:
                return _json(ids, lambda token: token)
            return _json(ids, lambda token: {"id": token, "piece": _token_text(grammars.token_bytes(token))})

        # Converted here: a long list would block the event loop.
        return Response(await service.handler.look_up(http, answer), media_type="application/json")

    @router.post("/detokenize")
    async def detokenize(http: Request, body: DetokenizeRequest) -> DetokenizeResponse:
        """The text of token ids, special tokens included."""
        tokenizer, vocab_size = service.model.tokenizer, service.model.generator.model.vocab_size

        def answer() -> str:
            check_ids(body.tokens, vocab_size, "tokens")
            return tokenizer.decode(body.tokens, skip_special_tokens=False)

        return DetokenizeResponse(content=await service.handler.look_up(http, answer))


def _token_text(raw: bytes) -> str | list[int]:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return list(raw)


def _json(ids: list[int], entry: Callable[[int], Any]) -> bytes:
    """A few at a time, so that other threads can run, and so that most of it only exists as text."""
    starts = range(0, len(ids), _BLOCK)
    blocks = (
        json.dumps([entry(token) for token in ids[at : at + _BLOCK]], ensure_ascii=False) for at in starts
    )
    return f'{{"tokens": [{", ".join(block[1:-1] for block in blocks)}]}}'.encode()
