"""POST /v1/completions."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from h2o_runtime.server.schemas.base import WHOLE, Count, No, One
from h2o_runtime.server.schemas.generation import Generation

Text = Annotated[str, Field(min_length=1)]
Tokens = Annotated[list[Count], Field(min_length=1)]


class CompletionRequest(Generation):
    prompt: (
        Text
        | Tokens
        | Annotated[list[Text], Field(min_length=1, max_length=1)]
        | Annotated[list[Tokens], Field(min_length=1, max_length=1)]
    ) = Field(description="A text, or its token ids; a list may hold one of them.")
    logprobs: Annotated[int, Field(ge=0, le=20), WHOLE] | None = None
    best_of: One | None = None
    echo: No | None = None

    def single(self) -> str | list[int]:
        """The one prompt."""
        prompt = self.prompt
        if isinstance(prompt, list) and not isinstance(prompt[0], int):
            return prompt[0]
        return prompt
