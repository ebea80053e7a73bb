"""POST /v1/embeddings."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from h2o_server.apis.completions.schema import Text, Tokens
from h2o_server.apis.shared.prefill import Prefill
from h2o_server.apis.shared.routers import RouterKeys
from h2o_server.apis.shared.types import Count


class EmbeddingRequest(RouterKeys):
    input: (
        Text
        | Tokens
        | Annotated[list[Text], Field(min_length=1)]
        | Annotated[list[Tokens], Field(min_length=1)]
    ) = Field(description="A text or its token ids, or a list of either, one embedding each; at most 2048.")
    model: str | None = Field(None, max_length=1000, description="Any name: there is one model.")
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="base64: the float32 numbers as bytes, the lowest first."
    )
    dimensions: Count | None = Field(None, description="Only the model's own size.")
    prefill: Prefill | None = None
    user: str | None = None  # has no effect

    def inputs(self) -> list[str | list[int]]:
        """One or several."""
        given: Any = self.input
        single = isinstance(given, str) or isinstance(given[0], int)
        return [given] if single else given


class EmbeddingObject(BaseModel):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(BaseModel):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(BaseModel):
    object: Literal["list"]
    data: list[EmbeddingObject]
    model: str
    usage: EmbeddingUsage
