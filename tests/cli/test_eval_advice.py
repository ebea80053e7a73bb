"""What h2o-eval advises, how sure it is, and which places it shows."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from h2o_cli.eval.advice import advice
from h2o_cli.eval.contestants import Kind
from h2o_cli.eval.metrics import standard_error, worst_runs
from h2o_cli.eval.results import Summary

NOTHING: dict[str, Any] = {one.name: None for one in fields(Summary)}
FULL = Summary(**{**NOTHING, "contestant": "full", "kind": Kind.TRUTH, "decoded_seconds": 10.0})
RULE = replace(
    FULL,
    contestant="h2o",
    kind=Kind.RULE,
    decoded_seconds=6.0,
    decoded_increase=0.004,
    decoded_error=0.001,
    decoded_divergence=0.002,
)
GUARD = replace(RULE, contestant="h2o missed=0.0025", kind=Kind.VARIANT, decoded_seconds=8.0)


def test_the_error_is_of_runs_of_tokens() -> None:
    more = np.random.default_rng(0).standard_normal(100).repeat(16)
    assert standard_error(more) == pytest.approx(more[::16].std(ddof=1) / 10)
    assert standard_error(more[:31]) is None


def test_the_worst_runs_come_first_and_lose_something() -> None:
    more = np.array([0.1, -1.0, 0.3, 0.0, 0.2, 0.4]).repeat(16)
    assert worst_runs(more) == [slice(80, 96), slice(32, 48), slice(64, 80)]
    assert worst_runs(-np.ones(64)) == []


@pytest.mark.parametrize(
    ("rule", "guard", "told"),
    [
        ({}, {}, 'advice: --prefill "h2o"; it reads this prompt in 0.60 times the time of full'),
        (
            {"decoded_divergence": 0.006},
            {},
            'advice: --prefill "h2o missed=0.0025"; it reads this prompt in 0.80 times the time of full',
        ),
        ({"decoded_increase": 0.007}, {"decoded_seconds": 12.0}, "advice: --prefill full; every faster rule"),
        ({"decoded_increase": 0.007, "decoded_error": 0.003}, {}, 'advice: --prefill "h2o"; it reads'),
    ],
)
def test_the_fastest_rule_that_loses_nothing(rule: dict[str, Any], guard: dict[str, Any], told: str) -> None:
    baseline = replace(RULE, contestant="sinks", kind=Kind.BASELINE, decoded_seconds=1.0)
    assert (advice([FULL, replace(RULE, **rule), replace(GUARD, **guard), baseline]) or "").startswith(told)


def test_nothing_is_advised_where_nothing_was_compared() -> None:
    assert advice([FULL]) is advice([RULE, GUARD]) is None
