"""What a run of an answer yields: events for its reader, and pauses for its driver."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.answers.sampling import SampledToken
from h2o_runtime.caches.reuse import ShortDifference
from h2o_runtime.devices.timings import PrefillTimer

Float32 = NDArray[np.float32]
Event = TypeVar("Event")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Prefilled:
    """The prompt is in the cache; `reused_tokens` of it were there before.

    difference: the few tokens without which most of the others had been there, too
    """

    prompt_tokens: int
    reused_tokens: int
    timer: PrefillTimer
    difference: ShortDifference | None = None


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


@dataclass(frozen=True)
class PromptPieceRead:
    """A prompt piece is in the cache, and more will follow: other runs may continue now."""


@dataclass(frozen=True)
class StepWanted:
    """Request for a step of the session with these rows; send its logits [rows, vocab] to the run."""

    tokens: tuple[int, ...]


Pause = PromptPieceRead | StepWanted

# A run yields events and pauses. Send it logits after StepWanted, else None. The logits must not change until
# the run's next step.
Run: TypeAlias = Generator[Event | Pause, Float32 | None, None]
# A prompt that is read in pieces: it yields after each piece but the last, and returns its result.
PiecewiseRead: TypeAlias = Generator[PromptPieceRead, None, Result]


def read_at_once(reading: PiecewiseRead[Result]) -> Result:
    """The result of a prompt that is read alone."""
    while True:
        try:
            next(reading)
        except StopIteration as end:
            result: Result = end.value
            return result


def alone(run: Run[Event], step: Callable[[Sequence[int]], Float32]) -> Iterator[Event]:
    """The events of a run that is driven alone."""
    logits = None
    try:
        while True:
            try:
                item = run.send(logits)
            except StopIteration:
                return
            logits = None
            if isinstance(item, StepWanted):
                logits = step(item.tokens)
            elif not isinstance(item, PromptPieceRead):
                yield item
    finally:
        run.close()
