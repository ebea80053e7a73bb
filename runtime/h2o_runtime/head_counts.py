"""How many heads a model's layers have, and who of them may have a list of keys of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from h2o_runtime.errors import ConfigError


@dataclass(frozen=True)
class HeadCounts:
    """The numbers of query heads and of key/value heads of some layers: one of each where all are alike."""

    query: frozenset[int]
    kv: frozenset[int]

    def scored(self, kind: Literal["kv", "query"]) -> int:
        """Hs: the number of heads with their own scores and list. Raises ConfigError if layers differ in it."""
        counts = self.query if kind == "query" else self.kv
        if len(counts) > 1:
            remedy = ""
            if kind == "kv" and len(self.query) == 1:
                remedy = "give each query head a set with heads=query, or "
            raise ConfigError(
                f"layers of this model have different numbers of {kind} heads "
                f"({', '.join(map(str, sorted(counts)))}), but a memory set for each {kind} head needs the same "
                f"number in all layers: {remedy}use `policy=full`",
                field="heads",
            )
        return next(iter(counts))
