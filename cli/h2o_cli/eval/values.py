"""The measured values, one per row, as they are written and read."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from enum import Enum
from operator import attrgetter
from typing import Any


class Measure(str, Enum):
    """place  says where in the text, or in the model, a number is from; empty where it is of the whole

    LOSS       mean loss of the tokens that count, in nats
    LOSS_AT    mean loss of tokens from position `place` on
    CAUSAL     mean loss of tokens in the text, each behind a prompt that ends before it
    DECODED    mean loss of the continuation, and its divergence and agreement
    DIVERGENCE mean KL divergence of predictions from full attention's
    AGREEMENT  share of likeliest tokens that are full attention's
    RECALL     attention mass of the lists over that of the best lists, mean over layers and heads
    RECALL_LOW its 5th percentile
    PAST       attention mass of the lists over that of the whole past, mean
    RECALL_AT  the recall of one layer, mean over heads
    NEEDLE     whether the answer of one prompt was found, by depth
    TASK       share of one prompt's answers that were found, by the task's name
    """

    LOSS = "loss"
    LOSS_AT = "loss_at"
    CAUSAL = "causal_loss"
    DECODED = "decoded_loss"
    DECODED_DIVERGENCE = "decoded_divergence"
    DECODED_AGREEMENT = "decoded_agreement"
    DIVERGENCE = "divergence"
    AGREEMENT = "agreement"
    RECALL = "recall"
    RECALL_LOW = "recall_5th"
    PAST = "past_share"
    RECALL_AT = "recall_at"
    NEEDLE = "needle"
    TASK = "task"


@dataclass(frozen=True)
class Value:
    """One value. job: the job that measured it; all rows of a job are written at once."""

    job: str
    contestant: str
    kind: str
    settings: str
    measure: Measure
    text: str
    length: int
    place: str
    value: float


COLUMNS = tuple(field.name for field in fields(Value))
_ROW = attrgetter(*COLUMNS)


def to_csv(values: Iterable[Value]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(map(_ROW, values))  # every job writes all rows again; `asdict` would copy each of them
    return out.getvalue()


def from_csv(text: str) -> list[Value]:
    """Raises ValueError for rows that `to_csv` did not write."""
    reader = csv.reader(text.splitlines())
    try:
        if tuple(next(reader, ())) != COLUMNS:
            raise ValueError("its columns are others")
        return [_value(row) for row in reader]
    except csv.Error as error:
        raise ValueError(str(error)) from error


def to_json(values: Sequence[Value]) -> list[dict[str, Any]]:
    return [
        {name: entry for name, entry in asdict(value).items() if name != "job"}
        | {"measure": value.measure.value}
        for value in values
    ]


def _value(row: list[str]) -> Value:
    if len(row) != len(COLUMNS):
        raise ValueError("a row is cut off")
    named = dict(zip(COLUMNS, row, strict=True))
    return Value(
        **{
            **named,
            "measure": Measure(named["measure"]),
            "length": int(named["length"]),
            "value": float(named["value"]),
        }  # type: ignore[arg-type]
    )
