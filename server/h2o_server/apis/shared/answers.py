"""The schemas of answers, for the OpenAPI description from which clients are generated."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class Open(BaseModel):
    model_config = ConfigDict(extra="allow", protected_namespaces=())


class ErrorObject(Open):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(BaseModel):
    error: ErrorObject


class PromptTokensDetails(BaseModel):
    """read_again_tokens, differs_at_token: there if the prompt differs from a cached one in few tokens only."""

    cached_tokens: int
    read_again_tokens: int | None = None
    differs_at_token: int | None = None


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class TimingsObject(BaseModel):
    """As llama.cpp's server reports them."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    draft_n: int
    draft_n_accepted: int


class H2OObject(BaseModel):
    """What sparse prefill did: chunks of the prompt's new tokens, tokens a head remembers, configuration.

    exact: whether every token saw all before it. forgotten_tokens: those that the cache evicted.
    summary: configuration, seen and evicted in a few words. seen: what the prompt's new tokens saw of their
    attention, see docs/quality.md.
    """

    chunks: int
    memory_size: int
    prefill: dict[str, Any]
    exact: bool
    forgotten_tokens: int
    seen: dict[str, float] | None
    summary: str


class Answer(Open):
    id: str
    model: str
    timings: TimingsObject
    h2o: H2OObject


class ChatChoice(Open):
    index: int
    message: dict[str, Any]
    finish_reason: Literal["stop", "length", "tool_calls"]
    logprobs: dict[str, Any] | None


class ChatCompletion(Answer):
    object: Literal["chat.completion"]
    created: int
    choices: list[ChatChoice]
    usage: Usage


class TextChoice(Open):
    index: int
    text: str
    finish_reason: Literal["stop", "length"]
    logprobs: dict[str, Any] | None


class TextCompletion(Answer):
    object: Literal["text_completion"]
    created: int
    choices: list[TextChoice]
    usage: Usage


class ResponseObject(Answer):
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "incomplete"]
    output: list[dict[str, Any]]
    usage: dict[str, Any]


class MessageObject(Answer):
    type: Literal["message"]
    role: Literal["assistant"]
    content: list[dict[str, Any]]
    stop_reason: Literal[
        "end_turn", "max_tokens", "model_context_window_exceeded", "stop_sequence", "tool_use"
    ]
    stop_sequence: str | None
    usage: dict[str, int]


class TokenCount(BaseModel):
    input_tokens: int


class AnthropicErrorObject(Open):
    type: str
    message: str


class AnthropicError(Open):
    type: Literal["error"]
    error: AnthropicErrorObject


class ModelObject(Open):
    """In OpenAI's form, and with Anthropic's members: type, display_name, created_at."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int
    type: Literal["model"]
    display_name: str
    created_at: datetime


class ModelList(BaseModel):
    """In OpenAI's form, and with Anthropic's members: has_more, first_id, last_id."""

    object: Literal["list"]
    data: list[ModelObject]
    has_more: bool
    first_id: str
    last_id: str


class Load(BaseModel):
    """How busy a server is, with SGLang's names. Tokens are those of the running request."""

    dp_rank: int
    num_running_reqs: int
    num_waiting_reqs: int
    num_total_reqs: int
    num_used_tokens: int
    max_total_num_tokens: int
    token_usage: float
    max_running_requests: int


class Loads(BaseModel):
    timestamp: float
    version: str
    dp_rank_count: int
    loads: list[Load]


class Health(BaseModel):
    status: Literal["ok"]
