"""POST /v1/completions."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from h2o_server.apis.shared.generation import MOST_CHOICES, Generation
from h2o_server.apis.shared.types import WHOLE, Count, One

Text = Annotated[str, Field(min_length=1)]
Tokens = Annotated[list[Count], Field(min_length=1)]


class CompletionRequest(Generation):
    prompt: (
        Text
        | Tokens
        | Annotated[list[Text], Field(min_length=1, max_length=MOST_CHOICES)]
        | Annotated[list[Tokens], Field(min_length=1, max_length=MOST_CHOICES)]
    ) = Field(description="A text or its token ids, or a list of either, answered one after the other.")
    logprobs: Annotated[int, Field(ge=0, le=20), WHOLE] | None = None
    best_of: One | None = None
    echo: bool | None = Field(None, description="Begin each answer with its prompt.")

    def prompts(self) -> list[str] | list[list[int]]:
        """The prompts, one or several."""
        prompt: Any = self.prompt
        single = isinstance(prompt, str) or isinstance(prompt[0], int)
        return [prompt] if single else prompt
