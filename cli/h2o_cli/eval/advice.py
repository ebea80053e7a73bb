"""Which setting a comparison advises."""

from __future__ import annotations

from collections.abc import Sequence

from h2o_cli.eval.contestants import Kind
from h2o_cli.eval.results import Summary

ALLOWED = 0.005  # KL divergence, in nats, and increase of the perplexity of a rule that is advised


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
