"""An answer as plain values: its text as it comes, and the whole of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.answers.events import Prefilled
from h2o_runtime.answers.sampling import SampledToken
from h2o_runtime.caches.reuse import ShortDifference
from h2o_runtime.policies.prefill import PrefillPolicy, Seen

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True, kw_only=True)
class Timings:
    """Counts and times, with the names and meanings that llama.cpp's server gives them.

    The first token is sampled from the prompt's logits, so its cost is part of `prompt_ms`. Time that the
    caller spends between two events is in neither. A rate over no tokens is 0.
    """

    cache_n: int  # tokens of the prompt that the cache held
    prompt_n: int  # tokens of the prompt that were run
    prompt_ms: float
    prompt_per_token_ms: float = field(init=False)
    prompt_per_second: float = field(init=False)
    predicted_n: int  # tokens of the answer, without the one that ends it
    predicted_ms: float
    predicted_per_token_ms: float = field(init=False)
    predicted_per_second: float = field(init=False)
    draft_n: int = 0  # tokens that were drafted and verified
    draft_n_accepted: int = 0  # the accepted ones among them

    def __post_init__(self) -> None:
        """Fill in the rates."""
        for part, n, ms in (
            ("prompt", self.prompt_n, self.prompt_ms),
            ("predicted", self.predicted_n, self.predicted_ms),
        ):
            object.__setattr__(self, f"{part}_per_token_ms", _ratio(ms, n))
            object.__setattr__(self, f"{part}_per_second", _ratio(1e3 * n, ms))


@dataclass(frozen=True)
class TextDelta:
    """The text added to the answer: whole characters, and nothing of a stop string.

    `tokens` are those since the last delta. Their text may end later than this one, because an unfinished
    character, or a possible start of a stop string, is held back.
    """

    text: str
    tokens: tuple[SampledToken, ...]


@dataclass(frozen=True)
class Completion:
    """The whole answer. `text` is that of all deltas joined.

    finish_reason  "stop": a token or a string that ends answers; "length": a limit; "cancelled": the watch
    tokens         all tokens of the answer, those of a stop string included, an end token not
    stop           the stop string that was found
    seed           with it the same request gives the same answer
    forgotten      tokens of prompt and answer that the cache has evicted
    prefill        the configuration that was used
    seen           what the prompt's new tokens saw of their attention, where that was compared
    difference     few tokens of the prompt for which most others were read again
    embedding      float32 [D] of length 1, where that was asked for; there is no text then
    """

    text: str
    finish_reason: FinishReason
    tokens: tuple[SampledToken, ...]
    timings: Timings
    prefill: PrefillPolicy[Any]
    seed: int
    stop: str | None = None
    forgotten: int = 0
    seen: Seen | None = None
    difference: ShortDifference | None = None
    embedding: NDArray[np.float32] | None = None

    @property
    def exact(self) -> bool:
        """Whether every token of the prompt saw all before it: always in a prompt of one chunk."""
        policy, n = self.prefill, self.timings.cache_n + self.timings.prompt_n
        return not self.forgotten and (policy.exact or policy.visible_pairs(n) == n * (n + 1) // 2)

    @property
    def summary(self) -> str:
        """In a few words: how the prompt was read, what it saw of its attention, and what the cache evicted."""
        seen = () if self.seen is None else (self.seen.summary(),)
        evicted = (f"{self.forgotten:,} tokens evicted",) if self.forgotten else ()
        return ", ".join((self.prefill.summary(), *seen, *evicted))


TextEvent = Prefilled | TextDelta | Completion


def _ratio(amount: float, of: float) -> float:
    return amount / of if of else 0.0
