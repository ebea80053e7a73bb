"""Parameters of both kinds of completion."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from pydantic import Field

from h2o_runtime.components.options import MOST
from h2o_runtime.names import Speculation
from h2o_server.apis.shared.left_alone import LEFT_ALONE, Ignored
from h2o_server.apis.shared.prefill import Prefill
from h2o_server.apis.shared.routers import RouterKeys
from h2o_server.apis.shared.types import WHOLE, Limit, No, Real, Share, Stop, Strict

MOST_CHOICES = 64  # for all prompts of a request together
MOST_GRAMMAR = 32 << 10  # characters


TopK = Annotated[int, Field(ge=-1, le=MOST, description="0 and -1 keep all."), WHOLE]


class StreamOptions(Strict):
    include_usage: bool | None = None
    include_obfuscation: No | None = None


# Otherwise the description would say nothing about keys.
TokenBias: TypeAlias = Annotated[
    dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], Real],
    Field(json_schema_extra={"additionalProperties": False}),
]


class AnswerRequest(RouterKeys):
    """Parameters of completions and responses. None is the default everywhere."""

    model: str | None = Field(None, max_length=1000, description="Any name: there is one model.")
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Share | None = None
    top_k: TopK | None = None
    min_p: Share | None = None
    presence_penalty: Annotated[Real, Field(ge=-100, le=100)] | None = None
    frequency_penalty: Annotated[Real, Field(ge=-100, le=100)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    prefill: Prefill | None = None

    user: Annotated[str | None, LEFT_ALONE] = None
    metadata: Annotated[dict[str, Any] | None, LEFT_ALONE] = None
    service_tier: Annotated[str | None, LEFT_ALONE] = None
    safety_identifier: Annotated[str | None, LEFT_ALONE] = None
    prompt_cache_key: Annotated[str | None, LEFT_ALONE] = None
    prompt_cache_retention: Ignored = None
    prompt_cache_options: Ignored = None


class Generation(AnswerRequest):
    """Parameters of both kinds of completion."""

    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES), WHOLE] | None = Field(
        None, description="Number of answers, generated one after the other."
    )
    max_tokens: Limit | None = None
    seed: Annotated[int, Field(ge=-1), WHOLE] | None = Field(None, description="-1 draws one.")
    stop: Stop | Annotated[list[Stop], Field(max_length=16)] | None = None
    repeat_last_n: Annotated[int, Field(ge=-1, le=MOST), WHOLE] | None = None
    logit_bias: TokenBias | None = Field(
        None, description="Map from token id to the value added to its logit."
    )
    ignore_eos: bool | None = None
    json_schema: dict[str, Any] | None = Field(
        None, description="As llama.cpp's: the answer is one JSON value of this schema."
    )
    grammar: Annotated[str, Field(min_length=1, max_length=MOST_GRAMMAR)] | None = Field(
        None, description="As llama.cpp's: the answer follows this GBNF grammar."
    )

    id_slot: Annotated[int, Field(ge=-1, le=MOST), WHOLE] | None = Field(
        None,
        description="As llama.cpp's: the slot to run in, if it is free; -1: the one that holds most of it.",
    )
    cache_prompt: bool | None = Field(
        None,
        description="false: read the whole prompt again, so that earlier requests cannot affect the answer.",
    )
    speculate: Speculation | None = Field(
        None,
        description="Draft tokens ahead, which does not change the answer: the server's --speculate.",
    )
    return_progress: bool | None = Field(
        None, description="With stream: chunks with prompt_progress while the prompt is read."
    )

    store: Annotated[bool | None, LEFT_ALONE] = Field(
        None, description="Nothing is stored, whatever the value."
    )

    @property
    def choices(self) -> int:
        """Answers to each prompt."""
        return 1 if self.n is None else self.n
