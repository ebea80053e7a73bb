"""What was measured: single values, one row per contestant, and the comparison as a text table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import exp, expm1, sqrt
from statistics import fmean, stdev

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Column, Table

from h2o_cli.eval.contestants import Kind
from h2o_cli.eval.metrics import Sanity
from h2o_cli.short_names import short_names


class Measure(str, Enum):
    """place  says where in the text, or in the model, a number is from; empty where it is of the whole

    LOSS       mean loss of the tokens that count, in nats
    LOSS_AT    mean loss of tokens from position `place` on
    DECODED    mean loss of the continuation, its divergence and agreement, the standard error of what it loses,
               and the seconds that its prompt took
    LOST_AT    mean increase of the loss of the tokens `place` of the continuation, one of those that lose most
    DIVERGENCE mean KL divergence of predictions from full attention's
    AGREEMENT  share of likeliest tokens that are full attention's
    RECALL     attention mass of the lists over that of the best lists, mean over layers and heads
    RECALL_LOW its 5th percentile
    PAST       attention mass of the lists over that of the whole past, mean
    RECALL_AT  the recall of one layer, mean over heads
    NEEDLE     whether the answer of one prompt was found, by depth
    """

    LOSS = "loss"
    LOSS_AT = "loss_at"
    DECODED = "decoded_loss"
    DECODED_DIVERGENCE = "decoded_divergence"
    DECODED_AGREEMENT = "decoded_agreement"
    DECODED_ERROR = "decoded_error"
    DECODED_SECONDS = "decoded_seconds"
    LOST_AT = "lost_at"
    DIVERGENCE = "divergence"
    AGREEMENT = "agreement"
    RECALL = "recall"
    RECALL_LOW = "recall_5th"
    PAST = "past_share"
    RECALL_AT = "recall_at"
    NEEDLE = "needle"


@dataclass(frozen=True)
class Value:
    """One measured value, as JSON has it."""

    contestant: str
    kind: Kind
    settings: str
    measure: Measure
    text: str
    length: int
    place: str
    value: float


@dataclass(frozen=True)
class Summary:
    """None where it was not measured. Increases are of the perplexity, 0.01 being 1 %; means over texts.

    decoded_…    of the continuation; decoded_error is the standard error of the mean over `texts`, of one text that
                 over its tokens; decoded_seconds are those of the prompt before it, mean
    lost_at      where the continuation loses most, and how many nats a token
    worst        the largest increase of a text
    past_share   of the attention to the past, how much the lists have
    needle       mean share of answers found, of so many `needle_cases`
    """

    contestant: str
    kind: Kind
    settings: str
    texts: int
    decoded_increase: float | None
    decoded_error: float | None
    decoded_divergence: float | None
    decoded_agreement: float | None
    decoded_seconds: float | None
    lost_at: tuple[tuple[str, float], ...]
    perplexity: float | None
    increase: float | None
    worst: float | None
    divergence: float | None
    agreement: float | None
    recall: float | None
    recall_5th: float | None
    past_share: float | None
    needle: float | None
    needle_cases: int


def summarize(values: Sequence[Value]) -> list[Summary]:
    """In order of first appearance, full attention before all others."""
    exact = [value for value in values if value.kind is Kind.TRUTH]
    names = dict.fromkeys(value.contestant for value in (*exact, *values))
    return [_summary([value for value in values if value.contestant == name], exact) for name in names]


def _summary(values: list[Value], exact: list[Value]) -> Summary:
    first = values[0]

    def of(measure: Measure) -> list[float]:
        return [value.value for value in values if value.measure is measure]

    def mean(measure: Measure) -> float | None:
        return fmean(found) if (found := of(measure)) else None

    def increases(measure: Measure) -> list[float]:
        """A text each: the relative increase of perplexity over full attention's."""
        known = {value.text: value.value for value in exact if value.measure is measure}
        return [expm1(value.value - known[value.text]) for value in values if value.measure is measure]

    decoded, read = increases(Measure.DECODED), increases(Measure.LOSS)
    loss = mean(Measure.LOSS)
    return Summary(
        first.contestant,
        first.kind,
        first.settings,
        texts=len({value.text for value in values if value.measure in (Measure.DECODED, Measure.LOSS)}),
        decoded_increase=fmean(decoded) if decoded else None,
        decoded_error=stdev(decoded) / sqrt(len(decoded))
        if len(decoded) > 1
        else mean(Measure.DECODED_ERROR),
        decoded_divergence=mean(Measure.DECODED_DIVERGENCE),
        decoded_agreement=mean(Measure.DECODED_AGREEMENT),
        decoded_seconds=mean(Measure.DECODED_SECONDS),
        lost_at=tuple((value.place, value.value) for value in values if value.measure is Measure.LOST_AT),
        perplexity=None if loss is None else exp(min(loss, 700.0)),
        increase=fmean(read) if read else None,
        worst=max(read, default=None),
        divergence=mean(Measure.DIVERGENCE),
        agreement=mean(Measure.AGREEMENT),
        recall=mean(Measure.RECALL),
        recall_5th=mean(Measure.RECALL_LOW),
        past_share=mean(Measure.PAST),
        needle=mean(Measure.NEEDLE),
        needle_cases=len(of(Measure.NEEDLE)),
    )


@dataclass(frozen=True)
class Figure:
    """One column of the comparison: a member of `Summary`, and how it is written."""

    title: str
    member: str
    format_spec: str

    def text(self, row: Summary) -> str:
        value = getattr(row, self.member)
        if value is None or (self.member == "texts" and not value):
            return ""
        text = format(value, self.format_spec)
        if self.member == "decoded_increase" and row.decoded_error is not None and value:
            text += f" ± {100 * row.decoded_error:.2f}"
        return f"{text} of {row.needle_cases}" if self.member == "needle" else text


FIGURES = (
    Figure("texts", "texts", "d"),
    Figure("continuation", "decoded_increase", "+.2%"),
    Figure("KL", "decoded_divergence", ".4f"),
    Figure("top-1", "decoded_agreement", ".1%"),
    Figure("prompt, s", "decoded_seconds", ".1f"),
    Figure("perplexity", "perplexity", ",.3f"),
    Figure("in prompt", "increase", "+.2%"),
    Figure("worst text", "worst", "+.2%"),
    Figure("KL in prompt", "divergence", ".4f"),
    Figure("top-1 in prompt", "agreement", ".1%"),
    Figure("recall", "recall", ".3f"),
    Figure("5th", "recall_5th", ".3f"),
    Figure("of past", "past_share", ".1%"),
    Figure("needles", "needle", ".0%"),
)


def comparison(name: str, reading: str, sanity: Sanity, rows: Sequence[Summary]) -> list[RenderableType]:
    """For the screen: sentences to read before any number, what was read, the table, and all settings."""
    figures = [figure for figure in FIGURES if any(map(figure.text, rows))]
    table = Table(
        Column("", no_wrap=True), *(Column(figure.title, justify="right") for figure in figures), title=name
    )
    names = short_names(row.contestant for row in rows)
    for row in rows:
        table.add_row(escape(names[row.contestant]), *(figure.text(row) for figure in figures))
    verdict = [
        f"{problem[0].upper()}{problem[1:]}. Small differences below say nothing about the rules."
        for problem in sanity.problems
    ]
    notes = [f"{names[row.contestant]}: {row.settings}" for row in rows if row.settings]
    lost = [
        f"{names[row.contestant]} loses {nats:.2f} nats a token at {place}"
        for row in rows
        for place, nats in row.lost_at
    ]
    return [*map(escape, verdict), escape(reading), table, *map(escape, (*notes, *lost))]
