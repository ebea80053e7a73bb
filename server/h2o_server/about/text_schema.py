"""POST /tokenize and /detokenize."""

from __future__ import annotations

from pydantic import BaseModel, Field

from h2o_server.apis.shared.base import Count, Strict


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
