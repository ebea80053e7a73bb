"""What both kinds of answers share, and the contract that makes a stream and a plain answer one thing."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from h2o_runtime.completion import Completion, TextPiece
from h2o_runtime.server.inference import Progress

Chunk = dict[str, Any]
TokenBytes = Callable[[int], bytes]

IMPOSSIBLE = -9999.0  # OpenAI's logarithm of no probability: JSON knows no infinity


class AnswerFormat(Protocol):
    """One answer in OpenAI's form. Calls come in this order, `progress` and `piece` any number of times."""

    @property
    def name(self) -> str:
        """The answer's id."""
        ...

    def begin(self) -> Iterable[Chunk]: ...

    def progress(self, progress: Progress, seconds: float) -> Chunk: ...

    def piece(self, piece: TextPiece) -> Iterable[Chunk]: ...

    def end(self, completion: Completion) -> Iterable[Chunk]: ...

    def whole(self, completion: Completion) -> Chunk:
        """The answer in one piece, instead of all the others."""
        ...


@dataclass(frozen=True)
class Head:
    """The members that every chunk of an answer begins with."""

    id: str
    object: str
    model: str
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def new(cls, prefix: str, object: str, model: str) -> Head:
        return cls(f"{prefix}-{secrets.token_hex(12)}", object, model)

    def chunk(self, choices: list[Any], **more: Any) -> Chunk:
        return {**vars(self), "choices": choices, **more}


def prompt_progress(progress: Progress, seconds: float) -> dict[str, Any]:
    """As llama.cpp's server reports it."""
    return {
        "total": progress.cached + progress.total,
        "cache": progress.cached,
        "processed": progress.cached + progress.done,
        "time_ms": round(1e3 * seconds),
    }


def usage(completion: Completion) -> dict[str, Any]:
    t = completion.timings
    prompt = t.cache_n + t.prompt_n
    return {
        "prompt_tokens": prompt,
        "completion_tokens": t.predicted_n,
        "total_tokens": prompt + t.predicted_n,
        "prompt_tokens_details": {"cached_tokens": t.cache_n},
    }


def extras(completion: Completion) -> dict[str, Any]:
    """Members beyond OpenAI's: llama.cpp's timings, and what sparse prefill did."""
    policy = completion.prefill.algorithm
    return {
        "timings": asdict(completion.timings),
        "h2o": {
            **policy.counts(completion.timings.prompt_n),
            "prefill": asdict(completion.prefill),
            "exact": policy.exact,
            "summary": policy.summary(),
        },
    }


def token_name(token: int, token_bytes: TokenBytes) -> dict[str, Any]:
    """Text and bytes of one token; a part of a character has no text of its own."""
    raw = token_bytes(token)
    return {"token": raw.decode("utf-8", "replace"), "bytes": list(raw)}


def finite(logprob: float) -> float:
    return max(logprob, IMPOSSIBLE)
