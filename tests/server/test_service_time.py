"""How long the running request is likely to take: means of what was measured, and sense where nothing was."""

from __future__ import annotations

import pytest

from h2o_runtime.answers.completion import Timings
from h2o_server.scheduling.service_time import RequestWork, ServiceTime, whole_seconds


def timings(prompt_n: int, prompt_ms: float, predicted_n: int, predicted_ms: float) -> Timings:
    return Timings(
        cache_n=0, prompt_n=prompt_n, prompt_ms=prompt_ms, predicted_n=predicted_n, predicted_ms=predicted_ms
    )


def test_what_is_left_at_the_rates_measured() -> None:
    service_time = ServiceTime()
    service_time.measured(timings(1000, 1000, 100, 2000))  # 1000 and 50 tokens a second, answers of 100
    assert service_time.remaining(RequestWork(prompt_left=500, answer_limit=1000)) == pytest.approx(0.5 + 2)
    assert service_time.remaining(RequestWork(prompt_left=500, answer_limit=10)) == pytest.approx(0.5 + 0.2)
    work = RequestWork(prompt_left=500, answer_limit=1000, answered=60)
    work.progress(400, 500)
    assert service_time.remaining(work) == pytest.approx(0.1 + 0.8)
    work.answered = 500  # longer than they usually are
    work.progress(500, 500)
    assert service_time.remaining(work) == 0


def test_a_new_measurement_moves_the_mean() -> None:
    service_time = ServiceTime()
    service_time.measured(timings(100, 100, 10, 100))
    service_time.measured(timings(200, 100, 10, 100))
    assert 1000 < (service_time.prefill or 0) < 1500
    for _ in range(50):
        service_time.measured(timings(200, 100, 10, 100))
    assert service_time.prefill == pytest.approx(2000, rel=1e-3)


def test_what_says_nothing_changes_nothing() -> None:
    """A prompt from the cache alone has no rate, nor has an answer of one token."""
    service_time = ServiceTime()
    service_time.measured(timings(100, 100, 10, 100))
    prefill, decode = service_time.prefill, service_time.decode
    service_time.measured(timings(0, 0, 0, 0))
    service_time.measured(timings(0, 0, 1, 5))
    assert (service_time.prefill, service_time.decode) == (prefill, decode)


def test_before_the_first_measurement() -> None:
    work = RequestWork(prompt_left=1000, answer_limit=10)
    assert 1 <= ServiceTime().remaining(work) <= 60
    work.began -= 2
    work.progress(500, 1000)  # 250 tokens a second
    assert ServiceTime().remaining(work) == pytest.approx(2, rel=0.1)


@pytest.mark.parametrize(
    ("seconds", "whole"), [(0, 1), (-3, 1), (0.2, 1), (1, 1), (1.1, 2), (59.5, 60), (1e9, 3600)]
)
def test_whole_seconds(seconds: float, whole: int) -> None:
    assert whole_seconds(seconds) == whole
