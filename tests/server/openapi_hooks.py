"""What schemathesis is told about this server. Loaded by its command line, see test_openapi.py."""

from __future__ import annotations

from typing import Any

import schemathesis

# What a schema cannot say: values that are fine by themselves, and not with each other or with this model.
_CONTRADICTIONS = (
    "give one of the two",
    "needs stream: true",
    "needs logprobs: true",
    "tools is empty",
    "which is not in tools",
    "cannot be used while tool_choice",
    "whose grammar decides where the answer ends",
    "two functions with the name",
    "which no message before it makes",
    "cannot continue a message",
    "cannot set",  # names of the template's that the request itself has
    "neither content nor tool_calls",
    "the chat template",
    "ids run from 0 to",
    "slots, from 0 on",
    "leaves no token to choose from",
    "prefill: ",
    "cannot be followed",  # a schema that no answer fits
    ": change or leave ",  # a part of it
    "is not a JSON schema",
    "half of a surrogate pair",
    "prompt is empty",
    "dimensions must be",
    "are more than",  # prompts and answers to each of them
    "exclude each other",
    "cannot be honoured together with",
    "cannot be combined with logprobs",
    "must not be below n",
    "is not a GBNF grammar",
    "can be continued",
    "add_generation_prompt",
    "a message beside the thoughts",
)


@schemathesis.check
def what_the_schema_allows_is_answered(
    ctx: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case
) -> None:
    """A request by the schema is refused for a contradiction only, or as it does not fit the context."""
    mode = case.meta.generation.mode if case.meta else None
    if mode is None or not mode.is_positive or response.status_code in (200, 404):
        return
    error: dict[str, Any] = response.json()["error"]
    told = error["code"] == "context_length_exceeded" or any(
        sentence in error["message"] for sentence in _CONTRADICTIONS
    )
    assert told, f"refused without need: {error['message']}"


@schemathesis.check
def errors_have_the_shape_that_clients_know(
    ctx: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case
) -> None:
    """Whoever is told about an error is told in one way: OpenAI's, or under /v1/messages Anthropic's."""
    if response.status_code < 400 or case.method == "HEAD":
        return
    anthropic = case.path.startswith("/v1/messages")
    assert set(response.json()) == ({"type", "error"} if anthropic else {"error"})
    assert {"message", "type", "param", "code"} <= set(response.json()["error"])
