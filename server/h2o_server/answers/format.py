"""Shared by all formats of answers: the interface for streamed and whole answers."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Protocol

from h2o_runtime.answers.completion import Completion, TextDelta, Timings
from h2o_runtime.answers.request import Prompt
from h2o_runtime.policies.prefill import PREFILL
from h2o_server.apis.shared.generation import StreamOptions
from h2o_server.http.problems import Problem
from h2o_server.scheduling.inference import Progress

Chunk = dict[str, Any]
TokenBytes = Callable[[int], bytes]

IMPOSSIBLE = -9999.0  # OpenAI's logarithm for probability zero: JSON has no infinity


class ChoiceFormat(Protocol):
    """One of an answer's choices. Call `begin`, `text_delta` any number of times, `end`; or only `whole`."""

    def begin(self) -> Iterable[Chunk]: ...

    def text_delta(self, delta: TextDelta) -> Iterable[Chunk]: ...

    def end(self, completion: Completion) -> Iterable[Chunk]: ...

    def whole(self, completion: Completion) -> Any: ...


class AnswerFormat(Protocol):
    """One answer in OpenAI's format; its choices may stream side by side.

    In a stream: chunks of all choices and any number of `progress`, then `end`, or `failed` wherever it breaks off.
    Otherwise: `whole`.
    """

    @property
    def name(self) -> str:
        """The answer's id."""
        ...

    @property
    def done(self) -> str | None:
        """The end of a stream; None if its last chunk is the end."""
        ...

    def choice(self, index: int, prompt: Prompt) -> ChoiceFormat:
        """The next choice, which answers `prompt`."""
        ...

    def progress(self, progress: Progress, seconds: float) -> Chunk: ...

    def end(self, completions: Sequence[Completion]) -> Iterable[Chunk]: ...

    def failed(self, problem: Problem) -> Iterable[Chunk]: ...

    def whole(self, choices: Sequence[Any], completions: Sequence[Completion]) -> Chunk:
        """The whole answer. choices: the results of `ChoiceFormat.whole`."""
        ...


@dataclass(frozen=True)
class Head:
    """The first members of every chunk of an answer."""

    id: str
    object: str
    model: str
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def new(cls, prefix: str, object: str, model: str) -> Head:
        return cls(f"{prefix}-{secrets.token_hex(12)}", object, model)

    def chunk(self, choices: list[Any], **more: Any) -> Chunk:
        return {**vars(self), "choices": choices, **more}


class ChoicesFormat:
    """What chat answers and continued texts have in common: choices under one head."""

    done = "[DONE]"

    def __init__(self, head: Head, choices: int, options: StreamOptions | None) -> None:
        self._head = head
        self._choices = choices
        self._tells_usage = options is not None and bool(options.include_usage)

    @property
    def name(self) -> str:
        return self._head.id

    def end(self, completions: Sequence[Completion]) -> Iterable[Chunk]:
        if self._tells_usage:
            yield self._head.chunk([], usage=usage(completions, self._choices))

    def failed(self, problem: Problem) -> Iterable[Chunk]:
        yield problem.body()

    def whole(self, choices: Sequence[Any], completions: Sequence[Completion]) -> Chunk:
        told = usage(completions, self._choices)
        return self._head.chunk(list(choices), usage=told, **extras(completions))


def prompt_progress(progress: Progress, seconds: float) -> dict[str, Any]:
    """As llama.cpp's server reports it."""
    return {
        "total": progress.cached + progress.total,
        "cache": progress.cached,
        "processed": progress.cached + progress.done,
        "time_ms": round(1e3 * seconds),
    }


def usage(completions: Sequence[Completion], choices: int) -> dict[str, Any]:
    """Tokens of a whole answer; a prompt with several `choices` counts once."""
    asked = [completion.timings for completion in completions[::choices]]
    cached = sum(t.cache_n for t in asked)
    prompt = cached + sum(t.prompt_n for t in asked)
    predicted = sum(completion.timings.predicted_n for completion in completions)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": predicted,
        "total_tokens": prompt + predicted,
        "prompt_tokens_details": {"cached_tokens": cached, **read_again(completions[::choices])},
    }


def read_again(completions: Sequence[Completion]) -> dict[str, int]:
    """Members of a usage: tokens that were read again for a short difference, and where the first one is."""
    found = [completion.difference for completion in completions if completion.difference]
    if not found:
        return {}
    return {"read_again_tokens": sum(one.again for one in found), "differs_at_token": found[0].at}


def extras(completions: Sequence[Completion]) -> dict[str, Any]:
    """Members beyond OpenAI's: llama.cpp's timings of all work, and the report of sparse prefill."""
    first = completions[0]
    forgotten = max(completion.forgotten for completion in completions)
    told = replace(first, forgotten=forgotten)
    return {
        "timings": asdict(_work(completions)),
        "h2o": {
            **first.prefill.counts(first.timings.prompt_n),
            "prefill": PREFILL.settings_of(first.prefill),
            "exact": told.exact,
            "forgotten_tokens": forgotten,
            "seen": None if first.seen is None else asdict(first.seen),
            "summary": told.summary,
        },
    }


def _work(completions: Sequence[Completion]) -> Timings:
    names = [field.name for field in fields(Timings) if field.init]
    timings = [completion.timings for completion in completions]
    return Timings(**{name: sum(getattr(one, name) for one in timings) for name in names})


def token_name(token: int, token_bytes: TokenBytes) -> dict[str, Any]:
    """Text and bytes of one token; an incomplete character has no text of its own."""
    raw = token_bytes(token)
    return {"token": raw.decode("utf-8", "replace"), "bytes": list(raw)}


def finite(logprob: float) -> float:
    return max(logprob, IMPOSSIBLE)
