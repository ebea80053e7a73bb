"""What `Generator.generate` yields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from h2o_runtime.answers.sampling import SampledToken
from h2o_runtime.devices.timings import PrefillTimer


@dataclass(frozen=True)
class Prefilled:
    """The prompt is in the cache; `reused_tokens` of it were there before."""

    prompt_tokens: int
    reused_tokens: int
    timer: PrefillTimer


@dataclass(frozen=True)
class TokenGenerated:
    """One more token of the answer."""

    sampled: SampledToken


@dataclass(frozen=True)
class Finished:
    """The end: "stop" at a stop token, "length" at a limit. `tokens` were generated."""

    reason: Literal["stop", "length"]
    tokens: int


GenerationEvent = Prefilled | TokenGenerated | Finished
