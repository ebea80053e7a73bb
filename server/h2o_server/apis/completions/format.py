"""Answers to /v1/completions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from h2o_runtime.answers.completion import Completion, TextDelta
from h2o_runtime.answers.request import Prompt
from h2o_runtime.answers.sampling import SampledToken
from h2o_server.answers.format import (
    ChoicesFormat,
    Chunk,
    Head,
    TokenBytes,
    extras,
    finite,
    prompt_progress,
    token_name,
)
from h2o_server.apis.completions.schema import CompletionRequest
from h2o_server.scheduling.inference import Progress


class CompletionFormat(ChoicesFormat):
    """Continued texts."""

    def __init__(self, body: CompletionRequest, model: str, token_bytes: TokenBytes) -> None:
        super().__init__(Head.new("cmpl", "text_completion", model), body.choices, body.stream_options)
        self._body = body
        self._token_bytes = token_bytes

    def choice(self, index: int, prompt: Prompt) -> CompletionChoice:
        echo = (prompt.text or "") if self._body.echo else ""
        return CompletionChoice(self._head, index, self._body.logprobs is not None, echo, self._token_bytes)

    def progress(self, progress: Progress, seconds: float) -> Chunk:
        choice = {"index": 0, "text": "", "logprobs": None, "finish_reason": None}
        return self._head.chunk([choice], prompt_progress=prompt_progress(progress, seconds))


class CompletionChoice:
    """One continued text. echo: the text before the answer."""

    def __init__(self, head: Head, index: int, logprobs: bool, echo: str, token_bytes: TokenBytes) -> None:
        self._head = head
        self._index = index
        self._logprobs = logprobs
        self._echo = echo
        self._token_bytes = token_bytes
        self._given = 0  # tokens sent so far
        self._offset = 0  # characters of the tokens sent so far

    def begin(self) -> Iterable[Chunk]:
        if self._echo:
            yield self._head.chunk([self._choice(self._echo, (), None)])

    def text_delta(self, delta: TextDelta) -> Iterable[Chunk]:
        yield self._head.chunk([self._choice(delta.text, delta.tokens, None)])

    def end(self, completion: Completion) -> Iterable[Chunk]:
        left = completion.tokens[self._given :]  # those without a text of their own at the end
        yield self._head.chunk([self._choice("", left, completion.finish_reason)], **extras([completion]))

    def whole(self, completion: Completion) -> dict[str, Any]:
        return self._choice(self._echo + completion.text, completion.tokens, completion.finish_reason)

    def _choice(self, text: str, tokens: tuple[SampledToken, ...], reason: str | None) -> dict[str, Any]:
        told = self._told(tokens) if self._logprobs else None
        return {"index": self._index, "text": text, "logprobs": told, "finish_reason": reason}

    def _told(self, tokens: tuple[SampledToken, ...]) -> dict[str, Any]:
        self._given += len(tokens)
        texts = [self._text(sampled.token) for sampled in tokens]
        offsets = []
        for text in texts:
            offsets.append(self._offset)
            self._offset += len(text)
        return {
            "tokens": texts,
            "token_logprobs": [finite(sampled.logprob) for sampled in tokens],
            "top_logprobs": [
                {self._text(token): finite(logprob) for token, logprob in sampled.top} for sampled in tokens
            ],
            "text_offset": offsets,
        }

    def _text(self, token: int) -> str:
        return str(token_name(token, self._token_bytes)["token"])
