"""Work that several machines share: each does a part of the cases, and their results are merged afterwards."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import click

Case = TypeVar("Case")


@dataclass(frozen=True)
class Shard:
    """One of `count` parts, the first of which has number 1."""

    number: int = 1
    count: int = 1

    def of(self, cases: Sequence[Case]) -> tuple[Case, ...]:
        """Every `count`-th case. All parts together are all cases, each once."""
        return tuple(cases[self.number - 1 :: self.count])

    def stretch(self, cases: Sequence[Case], costs: Sequence[int]) -> tuple[Case, ...]:
        """Neighbouring cases, about 1 / `count` of all costs. All parts together are all cases, each once."""
        total, mine, before = sum(costs), [], 0
        for case, cost in zip(cases, costs, strict=True):
            middle = 2 * before + cost
            if middle * self.count // (2 * total) == self.number - 1:
                mine.append(case)
            before += cost
        return tuple(mine)


class _ShardType(click.ParamType[Shard]):
    name = "I/N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, Shard):
            return value
        found = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", str(value))
        shard = Shard(*map(int, found.groups())) if found else Shard(0)
        if not 1 <= shard.number <= shard.count:
            self.fail(f"{value!r} is no part such as 1/3, the first of three", param, ctx)
        return shard


shard_option = click.option(
    "--shard",
    type=_ShardType(),
    default=Shard(),
    help="Do the I-th of N parts of the work, for example 1/3; `merge` joins the results.  [default: 1/1]",
)
