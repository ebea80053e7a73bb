"""Estimates how long the running request will take, from earlier requests."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from h2o_runtime.answers.completion import Timings

_NEW = 0.3  # weight of the newest measurement in a running mean
_UNKNOWN = 10.0  # seconds, before any measurement
_LONGEST = 3600


@dataclass
class RequestWork:
    """The running request's finished and remaining work, in tokens."""

    prompt_left: int
    answer_limit: int
    prompt_done: int = 0
    answered: int = 0
    began: float = field(default_factory=time.monotonic)

    def progress(self, done: int, total: int) -> None:
        self.prompt_done, self.prompt_left = done, total - done


@dataclass
class ServiceTime:
    """How long requests take: running means, None before the first."""

    prefill: float | None = None  # tokens per second
    decode: float | None = None  # tokens per second
    answer: float | None = None  # tokens

    def measured(self, timings: Timings) -> None:
        """Add a finished request."""
        if timings.prompt_n and timings.prompt_ms:
            self.prefill = _mean(self.prefill, timings.prompt_per_second)
        if timings.predicted_n > 1 and timings.predicted_ms:
            self.decode = _mean(self.decode, timings.predicted_per_second)
        self.answer = _mean(self.answer, timings.predicted_n)

    def remaining(self, work: RequestWork) -> float:
        """Estimated seconds for `work`."""
        prefill = self.prefill
        if prefill is None and work.prompt_done:
            prefill = work.prompt_done / max(time.monotonic() - work.began, 1e-3)
        if prefill is None:
            return _UNKNOWN
        answer = work.answer_limit if self.answer is None else min(work.answer_limit, self.answer)
        answer_left = max(answer - work.answered, 0)
        decode_seconds = answer_left / self.decode if self.decode else 0.0
        return work.prompt_left / prefill + decode_seconds


def whole_seconds(seconds: float) -> int:
    """For a Retry-After header: at least 1."""
    return min(max(math.ceil(seconds), 1), _LONGEST)


def _mean(old: float | None, new: float) -> float:
    return new if old is None else (1 - _NEW) * old + _NEW * new
