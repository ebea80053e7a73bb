"""Answers to /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from h2o_runtime.answers.completion import Completion, TextDelta
from h2o_runtime.answers.dialects.answer import Arguments, CallBegun, Delta, Thought
from h2o_runtime.answers.dialects.reader import AnswerReader
from h2o_runtime.answers.dialects.speech import Speech
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
from h2o_server.answers.reader import answer_reader
from h2o_server.apis.chat.schema import ChatRequest
from h2o_server.scheduling.inference import Progress


class ChatFormat(ChoicesFormat):
    """One chat answer, of one choice or several."""

    def __init__(self, body: ChatRequest, model: str, token_bytes: TokenBytes, speech: Speech) -> None:
        """speech: how the model writes thoughts and calls."""
        kind = "chat.completion.chunk" if body.stream else "chat.completion"
        super().__init__(Head.new("chatcmpl", kind, model), body.choices, body.stream_options)
        self._body = body
        self._token_bytes = token_bytes
        self._speech = speech

    def choice(self, index: int, prompt: Prompt) -> ChatChoice:
        reader = answer_reader(self._body, prompt, self._speech)
        return ChatChoice(self._head, index, self._body, self._token_bytes, reader)

    def progress(self, progress: Progress, seconds: float) -> Chunk:
        # With an empty choice: many clients read choices[0] unchecked.
        choice = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": None}
        return self._head.chunk([choice], prompt_progress=prompt_progress(progress, seconds))


class ChatChoice:
    """One choice. Text that may be a tool call or a thought is held back until that is certain."""

    def __init__(
        self,
        head: Head,
        index: int,
        body: ChatRequest,
        token_bytes: TokenBytes,
        reader: AnswerReader,
    ) -> None:
        self._head = head
        self._index = index
        self._logprobs = bool(body.logprobs)
        self._token_bytes = token_bytes
        self._reader = reader
        self._pending: tuple[SampledToken, ...] = ()  # tokens whose text was not told yet
        self._given = 0  # tokens told so far

    def begin(self) -> Iterable[Chunk]:
        yield self._delta({"role": "assistant", "content": ""})

    def text_delta(self, delta: TextDelta) -> Iterable[Chunk]:
        self._pending += delta.tokens
        yield from self._deltas(self._reader.push(delta.text))

    def end(self, completion: Completion) -> Iterable[Chunk]:
        yield from self._deltas(self._reader.finish())
        left = completion.tokens[self._given :]  # those without a text of their own at the end
        if left and self._logprobs:
            yield self._delta({} if self._reader.calls else {"content": ""}, self._told(left))
        last = self._choice({"delta": {}}, None, self._reason(completion))
        yield self._head.chunk([last], **extras([completion]))

    def whole(self, completion: Completion) -> dict[str, Any]:
        read = self._reader.push(completion.text) + self._reader.finish()
        deltas = [delta for delta in read if not isinstance(delta, Thought)]
        text = "".join(delta for delta in deltas if isinstance(delta, str))
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if thoughts := "".join(delta.text for delta in read if isinstance(delta, Thought)):
            message |= _thought(thoughts)
        if self._reader.calls:
            message |= {"content": text or None, "tool_calls": _calls(deltas)}
        return self._choice({"message": message}, self._told(completion.tokens), self._reason(completion))

    def _reason(self, completion: Completion) -> str:
        return finish_reason(self._reader, completion)

    def _deltas(self, deltas: Sequence[Delta]) -> Iterable[Chunk]:
        for delta in deltas:
            tokens, self._pending = self._pending, ()
            yield self._delta(_delta(delta), self._told(tokens))

    def _delta(self, delta: dict[str, Any], logprobs: dict[str, Any] | None = None) -> Chunk:
        return self._head.chunk([self._choice({"delta": delta}, logprobs, None)])

    def _choice(
        self, told: dict[str, Any], logprobs: dict[str, Any] | None, reason: str | None
    ) -> dict[str, Any]:
        return {"index": self._index, **told, "logprobs": logprobs, "finish_reason": reason}

    def _told(self, tokens: tuple[SampledToken, ...]) -> dict[str, Any] | None:
        """Log-probabilities of `tokens`, if requested."""
        if not self._logprobs:
            return None
        self._given += len(tokens)
        return {"content": [self._entry(token) for token in tokens], "refusal": None}

    def _entry(self, sampled: SampledToken) -> dict[str, Any]:
        def entry(token: int, logprob: float) -> dict[str, Any]:
            return {**token_name(token, self._token_bytes), "logprob": finite(logprob)}

        top = [entry(token, logprob) for token, logprob in sampled.top]
        return {**entry(sampled.token, sampled.logprob), "top_logprobs": top}


def finish_reason(reader: AnswerReader, completion: Completion) -> str:
    """Why the answer ended, once the reader has finished; a truncated call is not reported as a call."""
    if reader.calls and not reader.cut:
        return "tool_calls"
    # The arguments are incomplete, as at a limit.
    return "length" if reader.calls and completion.stop is not None else completion.finish_reason


def _delta(delta: Delta) -> dict[str, Any]:
    if isinstance(delta, str):
        return {"content": delta}
    if isinstance(delta, Thought):
        return _thought(delta.text)
    if isinstance(delta, CallBegun):
        return {"tool_calls": [{"index": delta.index, **_call(delta)}]}
    return {"tool_calls": [{"index": delta.index, "function": {"arguments": delta.text}}]}


def _thought(text: str) -> dict[str, Any]:
    """Servers have two names for it, and clients read one of them."""
    return {"reasoning_content": text, "reasoning": text}


def _call(begun: CallBegun) -> dict[str, Any]:
    return {"id": begun.id, "type": "function", "function": {"name": begun.name, "arguments": ""}}


def _calls(deltas: Sequence[Delta]) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []
    for delta in deltas:
        if isinstance(delta, CallBegun):
            calls.append(_call(delta))
        elif isinstance(delta, Arguments):
            calls[delta.index]["function"]["arguments"] += delta.text
    return calls
