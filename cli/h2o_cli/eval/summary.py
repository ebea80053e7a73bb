"""From single values to one row per contestant: means over texts, relative to full attention."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, expm1, sqrt
from statistics import fmean, stdev

from h2o_cli.eval.contestants import Kind
from h2o_cli.eval.values import Measure, Value
from h2o_runtime.components.written import written_settings


@dataclass(frozen=True)
class Summary:
    """None where it was not measured. Increases are of the perplexity, 0.01 being 1 %; means over texts.

    decoded_…    of the continuation; decoded_error is the standard error of the mean over `texts`, None of one
    worst        the largest increase of a text
    causal_…     of tokens in the text, each behind a prompt that ends before it
    past_share   of the attention to the past, how much the lists have
    needle, task mean share of answers found, of so many `…_cases`
    """

    contestant: str
    kind: str
    settings: str
    texts: int
    decoded_increase: float | None
    decoded_error: float | None
    decoded_divergence: float | None
    decoded_agreement: float | None
    perplexity: float | None
    increase: float | None
    worst: float | None
    causal_increase: float | None
    causal_error: float | None
    divergence: float | None
    agreement: float | None
    recall: float | None
    recall_5th: float | None
    past_share: float | None
    needle: float | None
    needle_cases: int
    task: float | None
    task_cases: int

    @property
    def values(self) -> dict[str, str]:
        """Settings by their names, and the policy's name."""
        name, found = written_settings(self.settings, "the settings", "settings", "write a policy")
        return found if name is None else {"policy": name, **found}


def differences(rule: Summary, row: Summary) -> dict[str, str]:
    """Settings of another contestant of the same policy that differ from the rule's; none for other
    policies.
    """
    settings, theirs = rule.values, row.values
    if settings.keys() != theirs.keys() or settings.get("policy") != theirs.get("policy"):
        return {}
    return {name: value for name, value in theirs.items() if settings[name] != value}


def summarize(values: Sequence[Value]) -> list[Summary]:
    """In order of first appearance, full attention before all others."""
    names = list(dict.fromkeys(value.contestant for value in values))
    truth = {
        value.contestant: None for value in values if value.kind == Kind.TRUTH.value
    }  # its name, if it has one
    names.sort(key=lambda name: name not in truth)
    exact = [value for value in values if value.contestant in truth]
    return [_summary([value for value in values if value.contestant == name], exact) for name in names]


def increases(
    values: Iterable[Value], exact: Iterable[Value], measure: Measure
) -> dict[tuple[str, int], float]:
    """By text and length: the relative increase of perplexity over full attention's."""
    known = {(value.text, value.length): value.value for value in exact if value.measure is measure}
    return {
        key: expm1(value.value - known[key])
        for value in values
        if value.measure is measure and (key := (value.text, value.length)) in known
    }


def _summary(values: list[Value], exact: list[Value]) -> Summary:
    first = values[0]

    def mean(measure: Measure) -> float | None:
        found = [value.value for value in values if value.measure is measure]
        return fmean(found) if found else None

    def cases(measure: Measure) -> int:
        return sum(value.measure is measure for value in values)

    def numbers(measure: Measure) -> list[float]:
        return list(increases(values, exact, measure).values())

    def error(increases: list[float]) -> float | None:
        """Standard error of their mean."""
        return stdev(increases) / sqrt(len(increases)) if len(increases) > 1 else None

    read, decoded, causal = map(numbers, (Measure.LOSS, Measure.DECODED, Measure.CAUSAL))
    loss = mean(Measure.LOSS)
    return Summary(
        first.contestant,
        first.kind,
        first.settings,
        texts=len({value.text for value in values if value.measure in (Measure.DECODED, Measure.LOSS)}),
        decoded_increase=fmean(decoded) if decoded else None,
        decoded_error=error(decoded),
        decoded_divergence=mean(Measure.DECODED_DIVERGENCE),
        decoded_agreement=mean(Measure.DECODED_AGREEMENT),
        perplexity=None if loss is None else exp(min(loss, 700.0)),
        increase=fmean(read) if read else None,
        worst=max(read, default=None),
        causal_increase=fmean(causal) if causal else None,
        causal_error=error(causal),
        divergence=mean(Measure.DIVERGENCE),
        agreement=mean(Measure.AGREEMENT),
        recall=mean(Measure.RECALL),
        recall_5th=mean(Measure.RECALL_LOW),
        past_share=mean(Measure.PAST),
        needle=mean(Measure.NEEDLE),
        needle_cases=cases(Measure.NEEDLE),
        task=mean(Measure.TASK),
        task_cases=cases(Measure.TASK),
    )
