"""The memory sets of a prompt, for display."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.generator import Generator
from h2o_runtime.schedule import Span
from h2o_runtime.text import TextStream, Tokenizer


@dataclass(frozen=True)
class MemorySnapshot:
    """The memory sets of one prefill.

    name       the answer's id
    ids        of the prompt
    sets       int32 [boundaries, layers, Hs, M]: positions in the prompt that each head kept after each chunk, or
               for each tile of a chunk's queries; only the last one if the prompt continued a conversation; empty
               without sparse prefill
    seen_by    rows whose queries see each of `sets`; empty if that is not known
    chunks     number of chunks of such a prompt under the policy
    dense      whether each token of such a prompt, read alone, attends to all earlier tokens
    continued  whether the prompt continued a conversation
    """

    name: str
    ids: tuple[int, ...]
    sets: NDArray[np.int32]
    seen_by: tuple[Span, ...]
    chunks: int
    dense: bool
    continued: bool

    @classmethod
    def take(cls, name: str, ids: tuple[int, ...], generator: Generator) -> MemorySnapshot:
        """Copy from the generator, right after a prefill."""
        report, policy, n = generator.report(), generator.session.origin.policy, len(ids)
        assert policy is not None, "there was a prefill"
        fresh = _ends_with(report.boundaries, report.last)
        last = report.last[None] if len(report.last) else np.zeros((0, 0, 0, 0), np.int32)
        last_by = (report.last_by,) if report.last_by else ()
        return cls(
            name,
            ids,
            sets=report.boundaries if fresh else last,
            seen_by=report.seen_by if fresh else last_by,
            chunks=policy.counts(n)["chunks"],
            dense=policy.visible_pairs(n) == n * (n + 1) // 2,
            continued=len(report.last) > 0 and not fresh,
        )

    def describe(self, tokenizer: Tokenizer) -> dict[str, Any]:
        """The prompt's tokens as text, and the numbers of boundaries, layers and heads.

        ends: for each boundary, how many tokens come before it; tiles of one chunk have the same. seen_by:
        first and last of the tokens that see it, or nothing. For the other members see this class's fields.
        """
        boundaries, layers, heads, size = self.sets.shape
        stream = TextStream(tokenizer)
        texts = []
        for token in self.ids:
            special = token in tokenizer.special_ids
            texts.append(
                tokenizer.decode([token], skip_special_tokens=False) if special else stream.push(token)
            )
        if texts:
            texts[-1] += stream.finish()
        return {
            "id": self.name,
            "tokens": texts,
            "boundaries": boundaries,
            # The token before a boundary is always selected.
            "ends": [int(positions.max()) + 1 for positions in self.sets],
            "seen_by": [[rows.start, rows.stop - 1] for rows in self.seen_by],
            "layers": layers,
            "heads": heads,
            "memory_size": size,
            "chunks": self.chunks,
            "dense": self.dense,
            "continued": self.continued,
        }

    def counts(self, boundary: int, layer: int) -> list[int]:
        """How many heads of the layer kept each token of the prompt after chunk `boundary`."""
        positions = self.sets[boundary, layer]
        positions = positions[positions >= 0]
        return [int(count) for count in np.bincount(positions, minlength=len(self.ids))]


def _ends_with(boundaries: NDArray[np.int32], last: NDArray[np.int32]) -> bool:
    """Whether `last` is the last of `boundaries`, which may be filled up with -1."""
    return (
        len(boundaries) > 0 and len(last) > 0 and np.array_equal(boundaries[-1][..., : last.shape[-1]], last)
    )
