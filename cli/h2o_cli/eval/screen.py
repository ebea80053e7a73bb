"""The comparison as a text table."""

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
from h2o_cli.short_names import short_names


@dataclass(frozen=True)
class Figure:
    """One column of a comparison. better: -1 where less is better, 1 where more is, 0 where neither.

    error  the standard error of an increase; cases: of how many a share is
    """

    title: str
    value: Callable[[Summary], float | None]
    format_spec: str
    better: int
    meaning: str
    error: Callable[[Summary], float | None] = lambda row: None
    cases: Callable[[Summary], int] = lambda row: 0

    def text(self, row: Summary) -> str:
        value, error, cases = self.value(row), self.error(row), self.cases(row)
        if value is None:
            return ""
        text = format(value, self.format_spec)
        if error is not None and value:
            text += f" ± {100 * error:.2f}"
        return f"{text} of {cases}" if cases else text


FIGURES = (
    Figure("texts", lambda row: row.texts or None, "d", 0, "that were read so far"),
    Figure(
        "continuation",
        lambda row: row.decoded_increase,
        "+.2%",
        -1,
        "increase of the perplexity of what follows the prompt, every token of which sees everything: what users "
        "get; mean over texts ± its standard error",
        error=lambda row: row.decoded_error,
    ),
    Figure(
        "KL",
        lambda row: row.decoded_divergence,
        ".4f",
        -1,
        "divergence of the continuation's predictions from those behind full attention, nats",
    ),
    Figure(
        "top-1",
        lambda row: row.decoded_agreement,
        ".1%",
        1,
        "how often the continuation's likeliest token is that behind full attention",
    ),
    Figure("perplexity", lambda row: row.perplexity, ",.3f", 0, "of the prompt's tokens that count"),
    Figure(
        "in prompt",
        lambda row: row.increase,
        "+.2%",
        -1,
        "increase of the perplexity inside the prompt, mean over texts: no prediction, where a token's memory is "
        "chosen by later ones, too",
    ),
    Figure(
        "causal",
        lambda row: row.causal_increase,
        "+.2%",
        -1,
        "the same for some of these tokens, each behind a prompt that ends before it; mean over texts ± its "
        "standard error",
        error=lambda row: row.causal_error,
    ),
    Figure("worst text", lambda row: row.worst, "+.2%", -1, "in prompt, the text that suffers most"),
    Figure(
        "KL in prompt",
        lambda row: row.divergence,
        ".4f",
        -1,
        "divergence of predictions inside the prompt from full attention's, nats",
    ),
    Figure(
        "top-1 in prompt",
        lambda row: row.agreement,
        ".1%",
        1,
        "how often the likeliest token inside the prompt is full attention's",
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
    Figure(
        "needles",
        lambda row: row.needle,
        ".0%",
        1,
        "facts that were found, of so many prompts",
        cases=lambda row: row.needle_cases,
    ),
    Figure(
        "tasks",
        lambda row: row.task,
        ".0%",
        1,
        "answers of RULER's tasks that were found, of so many prompts",
        cases=lambda row: row.task_cases,
    ),
)


def shown(rows: Sequence[Summary]) -> list[Figure]:
    """The columns with values."""
    return [figure for figure in FIGURES if any(figure.value(row) is not None for row in rows)]


def in_words(extent: Extent, documents: Sequence[Document]) -> str:
    """What was read."""
    count = f"{len(documents)} text{'s' if len(documents) > 1 else ''}"
    names = ", ".join(document.name for document in documents)
    words = f"{extent.length:,} tokens of {count} ({names})"
    if "decode" in extent.metrics:
        words += f"; {extent.decoded:,} tokens follow each"
    if "perplexity" in extent.metrics:
        words += f"; in the prompt those from position {extent.first:,} on count"
    return words


def verdict(sanity: Sanity) -> list[str]:
    """Sentences to read before any number."""
    if not sanity.problems:
        return []
    return [
        f"{problem[0].upper()}{problem[1:]}. Small differences below say nothing about the rules."
        for problem in sanity.problems
    ]


def comparison(
    name: str, extent: Extent, documents: Sequence[Document], sanity: Sanity, rows: Sequence[Summary]
) -> list[RenderableType]:
    figures = shown(rows)
    table = Table(
        Column("", no_wrap=True), *(Column(figure.title, justify="right") for figure in figures), title=name
    )
    names = short_names(row.contestant for row in rows)
    for row in rows:
        table.add_row(escape(names[row.contestant]), *(figure.text(row) for figure in figures))
    notes = [f"{names[row.contestant]}: {row.settings}" for row in rows if row.settings]
    return [*map(escape, verdict(sanity)), escape(in_words(extent, documents)), table, *map(escape, notes)]
