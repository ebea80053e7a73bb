"""The comparison as a table for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Column, Table

from h2o_cli.eval.plan import Extent
from h2o_cli.eval.sanity import Sanity
from h2o_cli.eval.summary import Summary
from h2o_cli.eval.texts import Document


@dataclass(frozen=True)
class Figure:
    """One column of a comparison. better: -1 where less is better, 1 where more is, 0 where neither."""

    title: str
    value: Callable[[Summary], float | None]
    format_spec: str
    better: int
    meaning: str

    def text(self, row: Summary) -> str:
        value = self.value(row)
        return "" if value is None else format(value, self.format_spec)


FIGURES = (
    Figure("perplexity", lambda row: row.perplexity, ",.3f", 0, "of the tokens that count"),
    Figure(
        "increase",
        lambda row: row.increase,
        "+.2%",
        -1,
        "of the perplexity over full attention's, mean over texts",
    ),
    Figure("worst text", lambda row: row.worst, "+.2%", -1, "the increase of the text that suffers most"),
    Figure(
        "decoded",
        lambda row: row.decoded_increase,
        "+.2%",
        -1,
        "increase for a continuation that is decoded after the prefill: what users get",
    ),
    Figure(
        "KL",
        lambda row: row.divergence,
        ".4f",
        -1,
        "divergence of the predictions from full attention's, nats",
    ),
    Figure(
        "top-1",
        lambda row: row.agreement,
        ".1%",
        1,
        "how often the likeliest token is full attention's",
    ),
    Figure(
        "recall",
        lambda row: row.recall,
        ".3f",
        1,
        "attention mass of the memory over the best that as many keys hold, mean over layers and heads",
    ),
    Figure("5th", lambda row: row.recall_5th, ".3f", 1, "the recall that 95 % of the heads exceed"),
    Figure(
        "of past",
        lambda row: row.past_share,
        ".1%",
        1,
        "how much of all attention to the past the memory holds",
    ),
    Figure("needles", lambda row: row.needle, ".0%", 1, "facts that were found"),
    Figure("tasks", lambda row: row.task, ".0%", 1, "answers of RULER's tasks that were found"),
)


def shown(rows: Sequence[Summary]) -> list[Figure]:
    """The columns in which anything stands."""
    return [figure for figure in FIGURES if any(figure.value(row) is not None for row in rows)]


def in_words(extent: Extent, documents: Sequence[Document]) -> str:
    """What was read."""
    names = ", ".join(document.name for document in documents)
    words = f"{extent.length:,} tokens of each of {names}; those from position {extent.first:,} on count"
    if "decode" in extent.metrics:
        words += f"; {extent.decoded:,} tokens decoded after them"
    return words


def verdict(sanity: Sanity) -> list[str]:
    """Sentences to be read before any number."""
    if not sanity.problems:
        return []
    return [
        f"This model looks untrained: {problem}. Small differences below say nothing about the rules."
        for problem in sanity.problems
    ]


def comparison(
    name: str, extent: Extent, documents: Sequence[Document], sanity: Sanity, rows: Sequence[Summary]
) -> list[RenderableType]:
    figures = shown(rows)
    table = Table(
        Column("", no_wrap=True), *(Column(figure.title, justify="right") for figure in figures), title=name
    )
    for row in rows:
        table.add_row(escape(row.contestant), *(figure.text(row) for figure in figures))
    notes = [f"{row.contestant}: {row.settings}" for row in rows if row.settings]
    return [*map(escape, verdict(sanity)), escape(in_words(extent, documents)), table, *map(escape, notes)]
