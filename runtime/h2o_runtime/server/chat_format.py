"""Answers to /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from h2o_runtime.completion import Completion, TextPiece
from h2o_runtime.sampling import SampledToken
from h2o_runtime.server.answer_format import (
    Chunk,
    Head,
    TokenBytes,
    extras,
    finite,
    prompt_progress,
    token_name,
    usage,
)
from h2o_runtime.server.inference import Progress
from h2o_runtime.server.schemas.chat import ChatRequest
from h2o_runtime.server.tools import may_become_call, parse_calls


class ChatFormat:
    """One chat answer. Text that may be a tool call is held back until it is clear what it is."""

    def __init__(self, body: ChatRequest, model: str, token_bytes: TokenBytes) -> None:
        kind = "chat.completion.chunk" if body.stream else "chat.completion"
        self._head = Head.new("chatcmpl", kind, model)
        self._logprobs = bool(body.logprobs)
        self._usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        self._tool_names = _tool_names(body)
        self._one_call = body.parallel_tool_calls is False
        self._token_bytes = token_bytes
        self._held = ""  # the answer so far, while it may be a call
        self._held_tokens: tuple[SampledToken, ...] = ()
        self._holds = bool(self._tool_names)
        self._given = 0  # tokens told so far

    @property
    def name(self) -> str:
        return self._head.id

    def begin(self) -> Iterable[Chunk]:
        yield self._delta({"role": "assistant", "content": ""})

    def progress(self, progress: Progress, seconds: float) -> Chunk:
        # With a choice, though an empty one: many clients look at choices[0] without a thought.
        choice = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": None}
        return self._head.chunk([choice], prompt_progress=prompt_progress(progress, seconds))

    def piece(self, piece: TextPiece) -> Iterable[Chunk]:
        self._held += piece.text
        self._held_tokens += piece.tokens
        if self._holds and may_become_call(self._held):
            return
        self._holds = False
        yield self._delta({"content": self._held}, self._told(self._held_tokens))
        self._held, self._held_tokens = "", ()

    def end(self, completion: Completion) -> Iterable[Chunk]:
        calls = self._calls(completion)
        left = completion.tokens[self._given :]  # those without a text of their own at the end
        if calls:
            indexed = [{"index": index, **call} for index, call in enumerate(calls)]
            yield self._delta({"tool_calls": indexed}, self._told(left))
        elif self._held or (left and self._logprobs):
            yield self._delta({"content": self._held}, self._told(left))
        reason = "tool_calls" if calls else completion.finish_reason
        last = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": reason}
        yield self._head.chunk([last], **extras(completion))
        if self._usage:
            yield self._head.chunk([], usage=usage(completion))

    def whole(self, completion: Completion) -> Chunk:
        calls = self._calls(completion)
        message: dict[str, Any] = {"role": "assistant", "content": completion.text, "refusal": None}
        if calls:
            message |= {"content": None, "tool_calls": calls}
        choice = {
            "index": 0,
            "message": message,
            "logprobs": self._told(completion.tokens),
            "finish_reason": "tool_calls" if calls else completion.finish_reason,
        }
        return self._head.chunk([choice], usage=usage(completion), **extras(completion))

    def _calls(self, completion: Completion) -> list[dict[str, Any]]:
        calls = parse_calls(completion.text, self._tool_names) if self._tool_names else []
        return calls[:1] if self._one_call else calls

    def _delta(self, delta: dict[str, Any], logprobs: dict[str, Any] | None = None) -> Chunk:
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": None}
        return self._head.chunk([choice])

    def _told(self, tokens: tuple[SampledToken, ...]) -> dict[str, Any] | None:
        """Log-probabilities of `tokens`, where they were asked for."""
        if not self._logprobs:
            return None
        self._given += len(tokens)
        return {"content": [self._entry(token) for token in tokens], "refusal": None}

    def _entry(self, sampled: SampledToken) -> dict[str, Any]:
        def entry(token: int, logprob: float) -> dict[str, Any]:
            return {**token_name(token, self._token_bytes), "logprob": finite(logprob)}

        top = [entry(token, logprob) for token, logprob in sampled.top]
        return {**entry(sampled.token, sampled.logprob), "top_logprobs": top}


def _tool_names(body: ChatRequest) -> Collection[str]:
    """Functions that the answer may call."""
    if not body.tools or body.tool_choice == "none":
        return ()
    return {tool.function.name for tool in body.tools}
