"""What an answer yields on its way: events for whoever reads it, and pauses for whoever drives it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.answers.sampling import SampledToken
from h2o_runtime.devices.timings import PrefillTimer

Float32 = NDArray[np.float32]
Event = TypeVar("Event")


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


@dataclass(frozen=True)
class PromptPieceRead:
    """A piece of the prompt is in the cache, and more follow: others may run before."""


@dataclass(frozen=True)
class StepWanted:
    """A step of the session with these rows is to be taken, and its logits [rows, vocab] are to be sent to the run.

    tokens  the session's next, and behind it those that may follow. What becomes of their rows is up to the run
    """

    tokens: tuple[int, ...]


Pause = PromptPieceRead | StepWanted

# A run goes from event to event, and from pause to pause: logits are sent where a step was wanted, else None. They
# must stay as they are until the run's next step.
Run: TypeAlias = Generator[Event | Pause, Float32 | None, None]


def alone(run: Run[Event], step: Callable[[Sequence[int]], Float32]) -> Iterator[Event]:
    """The events of a run that nothing else runs beside."""
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
