"""/v1/embeddings."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Callable, Sequence

from fastapi import APIRouter, Request, Response

from h2o_runtime.answers.completion import Completion
from h2o_server.apis.embeddings.schema import EmbeddingList, EmbeddingRequest
from h2o_server.http.room import LISTS
from h2o_server.service import Service

Encoding = Callable[[Completion], str]


def add_routes(router: APIRouter, service: Service) -> None:
    path, without_version = LISTS

    @router.post(without_version, include_in_schema=False)  # for clients whose base URL ends before /v1
    @router.post(path, response_model=EmbeddingList)
    async def embeddings(http: Request, body: EmbeddingRequest) -> Response:
        """One vector of length 1 for each input."""
        builder, handler = service.builder, service.handler
        name = f"embd-{secrets.token_hex(12)}"
        completions = await handler.complete(
            http, lambda: builder.embedding(body, service.settings.pooling), builder.constraint, name
        )
        encode = _base64 if body.encoding_format == "base64" else _numbers
        alias = service.settings.alias
        # Written there: a long list would block the event loop.
        text = await handler.look_up(http, lambda: _answer(completions, encode, alias))
        return Response(text, media_type="application/json")


def _answer(completions: Sequence[Completion], encode: Encoding, model: str) -> str:
    """The JSON of an EmbeddingList, written vector by vector, so that other threads can run."""
    data = (
        f'{{"object": "embedding", "index": {index}, "embedding": {encode(completion)}}}'
        for index, completion in enumerate(completions)
    )
    tokens = sum(completion.timings.prompt_n for completion in completions)
    rest = json.dumps({"model": model, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}})
    return f'{{"object": "list", "data": [{", ".join(data)}], {rest[1:]}'


def _numbers(completion: Completion) -> str:
    """As few digits as tell a float32 from its neighbours."""
    assert completion.embedding is not None
    return json.dumps([float(str(number)) for number in completion.embedding], allow_nan=False)


def _base64(completion: Completion) -> str:
    assert completion.embedding is not None
    return f'"{base64.b64encode(completion.embedding.astype("<f4").tobytes()).decode()}"'
