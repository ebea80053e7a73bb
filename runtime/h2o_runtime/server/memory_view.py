"""What sparse prefill remembers of a prompt, for people to look at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.generator import Generator
from h2o_runtime.text import TextStream, Tokenizer


@dataclass(frozen=True)
class MemorySnapshot:
    """The memory sets that one prefill left behind.

    name  the answer's id
    ids   of the prompt
    sets  int32 [boundaries, layers, Hs, M]: positions in the prompt that each head kept after each chunk;
          only the last boundary when the prompt went on from a conversation; empty without sparse prefill
    """

    name: str
    ids: tuple[int, ...]
    sets: NDArray[np.int32]

    @classmethod
    def take(cls, name: str, ids: tuple[int, ...], generator: Generator) -> MemorySnapshot:
        """Copy from the generator, right after a prefill."""
        report = generator.report()
        if not len(report.last):
            return cls(name, ids, np.zeros((0, 0, 0, 0), np.int32))
        fresh = len(report.boundaries) > 0 and np.array_equal(report.boundaries[-1], report.last)
        return cls(name, ids, report.boundaries if fresh else report.last[None])

    def describe(self, tokenizer: Tokenizer) -> dict[str, Any]:
        """The prompt's tokens as text, and how many boundaries, layers and heads there are to look at.

        ends: for each boundary, how many tokens lie before it.
        """
        boundaries, layers, heads, size = self.sets.shape
        stream = TextStream(tokenizer)
        pieces = []
        for token in self.ids:
            special = token in tokenizer.special_ids
            pieces.append(
                tokenizer.decode([token], skip_special_tokens=False) if special else stream.push(token)
            )
        if pieces:
            pieces[-1] += stream.finish()
        return {
            "id": self.name,
            "tokens": pieces,
            "boundaries": boundaries,
            "ends": [int(kept.max()) + 1 for kept in self.sets],  # the token before a boundary is always kept
            "layers": layers,
            "heads": heads,
            "memory_size": size,
        }

    def counts(self, boundary: int, layer: int) -> list[int]:
        """How many heads of the layer kept each token of the prompt after chunk `boundary`."""
        positions = self.sets[boundary, layer].ravel()
        return [int(count) for count in np.bincount(positions, minlength=len(self.ids))]
