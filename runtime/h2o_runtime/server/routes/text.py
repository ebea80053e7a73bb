"""/tokenize and /detokenize."""

from __future__ import annotations

from fastapi import APIRouter

from h2o_runtime.server.schemas.text import (
    DetokenizeRequest,
    DetokenizeResponse,
    Piece,
    TokenizeRequest,
    TokenizeResponse,
)
from h2o_runtime.server.service import Service


def add_routes(router: APIRouter, service: Service) -> None:
    @router.post("/tokenize")
    async def tokenize(body: TokenizeRequest) -> TokenizeResponse:
        """The token ids of a text; special tokens written out in it become their ids."""
        tokenizer, grammars = service.model.tokenizer, service.grammars

        def tokens() -> list[int] | list[Piece]:
            ids = tokenizer.encode(body.content, add_special_tokens=body.add_special)
            if not body.with_pieces:
                return ids
            return [Piece(id=token, piece=_piece(grammars.token_bytes(token))) for token in ids]

        return TokenizeResponse(tokens=await service.handler.in_text_thread(tokens))

    @router.post("/detokenize")
    async def detokenize(body: DetokenizeRequest) -> DetokenizeResponse:
        """The text of token ids, special tokens included."""
        tokenizer = service.model.tokenizer
        text = await service.handler.in_text_thread(
            lambda: tokenizer.decode(body.tokens, skip_special_tokens=False)
        )
        return DetokenizeResponse(content=text)


def _piece(raw: bytes) -> str | list[int]:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return list(raw)
