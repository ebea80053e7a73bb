"""A request as plain values, which `text_model` answers; checks prompts of token ids."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from h2o_runtime.answers.constraint import Constraint
from h2o_runtime.answers.sampling import Sampling
from h2o_runtime.errors import ConfigError, ContextOverflowError, InputError, UnknownTokenError
from h2o_runtime.names import Pooling, Speculation
from h2o_runtime.policies.prefill import PrefillPolicy
from h2o_runtime.text import StopStrings


@dataclass(frozen=True)
class Prompt:
    """A prompt ready to run. Make it with `TextModel.text_prompt` or `chat_prompt`, or from ids alone.

    ids   token ids
    text  what they stand for, of a chat with its guards (`text.markup`); None for bare ids
    chat  whether the answer is a message of its own, rather than the text's continuation
    """

    ids: tuple[int, ...]
    text: str | None = None
    chat: bool = False


@dataclass(frozen=True)
class Request:
    """One prompt and how to answer it. Raises ConfigError for values out of range.

    max_tokens  most tokens of the answer; None goes on until the context is full
    prefill     None takes that of the bundle and the device: `Generator.default_policy`
    stop        strings that end the answer and are not part of it
    stop_tokens token ids that end the answer; a `TextModel` adds the model's own
    ignore_eos  never sample a token that ends an answer, so that its length is known: for measurements
    reuse       keep what the cache holds of the prompt; without it no earlier request has a say in the answer
    slot        of those of `TextModel.slots` that are free, the one to run in if it is among them
    speculate   whether the answer is read ahead, which does not change it; None: as the model was loaded
    constraint  which tokens may come; it follows one answer, so such a request can be run once
    shown       special tokens that are part of the answer's text, for a parser of the text
    pooling     the prompt is embedded in place of an answer, by this pooling; the cache has no say in that
    """

    prompt: Prompt
    max_tokens: int | None = None
    prefill: PrefillPolicy[Any] | None = None
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    stop_tokens: tuple[int, ...] = ()
    ignore_eos: bool = False
    reuse: bool = True
    slot: int | None = None
    speculate: Speculation | None = None
    constraint: Constraint | None = None
    shown: frozenset[int] = frozenset()
    pooling: Pooling | None = None

    def __post_init__(self) -> None:
        if self.ignore_eos and self.constraint is not None:
            raise ConfigError(
                "ignore_eos cannot be combined with a grammar, which decides where the answer ends: leave it out",
                field="ignore_eos",
            )
        if self.max_tokens is not None and self.max_tokens < 0:
            raise ConfigError(
                f"max_tokens must not be negative, but is {self.max_tokens}", field="max_tokens"
            )
        StopStrings(self.stop)  # checks them now rather than after the prefill

    def most_tokens(self, context: int) -> int:
        """Most tokens of the answer in a context of so many."""
        room = context - len(self.prompt.ids) + 1  # the last token needs no cache row
        return max(room, 0) if self.max_tokens is None else self.max_tokens


def checked_ids(ids: ArrayLike, vocab_size: int, context: int) -> NDArray[np.int64]:
    """A prompt as int64 [N], 1 ≤ N ≤ context. Raises InputError, ContextOverflowError, UnknownTokenError."""
    tokens = np.asarray(ids)
    integers = np.issubdtype(tokens.dtype, np.integer)
    if not integers:  # NumPy makes floats of integers that it has no dtype for
        tokens = np.asarray(ids, object)
        integers = all(type(token) is int for token in tokens.flat)
    if tokens.ndim != 1 or not integers:
        raise InputError(f"token ids must be a flat list of integers, but have shape {list(tokens.shape)}")
    if not tokens.size:
        raise InputError("the prompt is empty: give at least one token")
    if len(tokens) > context:
        raise ContextOverflowError(len(tokens), context)
    unknown = np.flatnonzero((tokens < 0) | (tokens >= vocab_size))
    if len(unknown):
        position = int(unknown[0])
        raise UnknownTokenError(int(tokens[position]), vocab_size, position)
    return np.ascontiguousarray(tokens, np.int64)
