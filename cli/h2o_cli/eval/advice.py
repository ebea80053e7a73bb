"""What a comparison says about one text: how sure it is, where most is lost, and which setting to use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import sqrt
from statistics import stdev
from typing import TYPE_CHECKING

import numpy as np

from h2o_cli.eval.contestants import Kind
from h2o_cli.eval.metrics import Float64

if TYPE_CHECKING:
    from h2o_cli.eval.results import Summary

RUN = 16  # tokens that are judged together, because losses of neighbours depend on each other
WORST = 3  # runs that are shown
ALLOWED = 0.005  # KL divergence, in nats, and increase of the perplexity of a rule that is advised


def standard_error(more: Float64) -> float | None:
    """Of the mean of losses' differences [N], from means of runs; None of less than two runs."""
    means = [float(run.mean()) for run in _runs(more)]
    return stdev(means) / sqrt(len(means)) if len(means) > 1 else None


def worst_runs(more: Float64) -> list[slice]:
    """The runs of tokens whose losses rise most, among those whose losses rise."""
    sums = np.array([run.sum() for run in _runs(more)])
    order = sums.argsort()[::-1][:WORST]
    return [slice(RUN * i, RUN * (i + 1)) for i in order.tolist() if sums[i] > 0]


def _runs(more: Float64) -> Iterator[Float64]:
    for start in range(0, len(more) - RUN + 1, RUN):
        yield more[start : start + RUN]


def advice(rows: Sequence[Summary]) -> str | None:
    """The fastest measured rule that loses next to nothing, or full attention; None if that was not measured."""
    rules = [row for row in rows if row.kind in (Kind.TRUTH, Kind.RULE, Kind.VARIANT) and row.decoded_seconds]
    exact = next((row for row in rules if row.kind is Kind.TRUTH), None)
    if exact is None or len(rules) < 2:
        return None
    best = min(filter(_loses_nothing, rules), key=lambda row: row.decoded_seconds or 0.0)
    if best is exact:
        return "advice: --prefill full; every faster rule loses too much here, or none is faster"
    share = (best.decoded_seconds or 0.0) / (exact.decoded_seconds or 1.0)
    return (
        f'advice: --prefill "{best.contestant}"; it reads this prompt in {share:.2f} times the time of full'
    )


def _loses_nothing(row: Summary) -> bool:
    if row.kind is Kind.TRUTH:
        return True
    surely = (row.decoded_increase or 0.0) - (row.decoded_error or 0.0)
    return surely <= ALLOWED and (row.decoded_divergence or 0.0) <= ALLOWED
