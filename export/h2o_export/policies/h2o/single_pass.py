"""The h2o policy as one masked softmax a layer, inside transformers' own layers: the pipeline's truth.

Written independently of the runtime: no phases, no partial states, no fusion, no cache. It computes a layer's
whole prompt at once, with scores in the dtype of the model.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from h2o_export.policies.base import LayerAttention, Verdict
from h2o_export.reference.softmax import capped, masked_softmax
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.policies.prefill.h2o import H2O

NEGLIGIBLE = 1e-30  # scores below tie at zero
NEAR_TIE = 1e-4  # relative: float32 hidden states cause such differences in the scores of deep layers
Rule = TypeVar("Rule", bound=H2O[Any])


@dataclass
class SinglePass(LayerAttention, Generic[Rule]):
    """Attention for transformers' layers; an instance serves one prompt. Sinks have no say in what is chosen.

    `adopt` [layers, boundaries, Hs, M], if given, are the bundle's memory sets. They are checked against this
    reference's own scores and then used. Otherwise a tie decided differently would make all later results
    incomparable.
    """

    policy: Rule
    model: ModelSpec  # the layers under policies
    adopt: NDArray[np.int32] | None = None
    softcap: float | None = None  # of the call in progress, as the sinks
    sinks: Tensor | None = None
    swapped: int = 0  # entries that differ and score alike
    wrong: int = 0  # entries that differ and do not

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, softcap: float | None, sinks: Tensor | None
    ) -> Tensor:
        self.softcap, self.sinks = softcap, sinks
        group = len(q) // len(k)
        return self._attend(layer, q, k.repeat_interleave(group, dim=0), v.repeat_interleave(group, dim=0))

    @abstractmethod
    def _attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q, k, v [Hq, N, d], q times the scale → [Hq, N, d]."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """q [Hq, rows, d], k [Hq, keys, d] → [Hq, rows, keys], below the cap where there is one."""
        return capped(q @ k.transpose(1, 2), self.softcap)

    def _checked(self, mine: Tensor, theirs: Tensor, rank: Tensor, ties: Sequence[float] = ()) -> Tensor:
        """The bundle's set as a mask, after counting its differences from this reference's own. Ranks of a head tie
        if their relative difference is at most its number of `ties`, by default NEAR_TIE."""
        adopted = torch.zeros_like(mine).scatter_(1, theirs, True)
        for head, tie in enumerate(ties or [NEAR_TIE] * len(mine)):
            missing = rank[head][mine[head] & ~adopted[head]]
            extra = rank[head][adopted[head] & ~mine[head]]
            near = _alike(missing, extra, tie)
            different = len(missing) + len(extra)
            self.swapped += different if near else 0
            self.wrong += 0 if near else different
        return adopted

    def verdict(self) -> Verdict:
        """A comparison of the adopted memory sets with this reference's own."""
        note = f"memory sets: {self.swapped} near ties went the other way, {self.wrong} entries wrong"
        return Verdict(self.wrong == 0, note)


@dataclass
class ChainPass(SinglePass[Rule]):
    """Chunk by chunk, with the memory set of the previous chunk. `adopt` has a set for each chunk
    boundary.
    """

    def _attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads, n = q.shape[0], q.shape[1]
        size = self.policy.chunk_size
        tail = n - self.policy.dense_tail if n > size else n
        score = torch.zeros(self.policy.set_count(self.model.head_counts), n, dtype=torch.float64)  # [Hs, N]
        memory = torch.zeros(len(score), n, dtype=torch.bool)
        out = q.new_empty((*q.shape[:2], v.shape[2]))
        for boundary, start in enumerate(range(0, n, size)):
            stop = min(start + size, n)
            dots = self.scores(q[:, start:stop], k[:, :stop])  # [Hq, rows, stop]
            row, column = torch.arange(start, stop)[:, None], torch.arange(stop)[None, :]
            causal = column <= row
            intra = causal & (column >= start)
            inter = memory[:, :stop].repeat_interleave(heads // len(score), dim=0)[:, None]  # [Hq, 1, stop]
            visible = torch.where(row >= tail, causal, intra) | (inter & (row < tail))
            out[:, start:stop] = masked_softmax(dots, visible, self.sinks) @ v[:, :stop]
            if stop < n:
                self.update(score[:, :stop], dots, intra, inter)
                memory = self._select(layer, boundary, score, memory, start, stop)
        return out

    @abstractmethod
    def update(self, score: Tensor, dots: Tensor, intra: Tensor, inter: Tensor) -> None:
        """New scores of everything up to a chunk's end, in place: score float64 [Hs, stop].

        dots [Hq, rows, stop] of the chunk's queries; intra [rows, stop] and inter [Hq, 1, stop] say which
        keys they see, in the chunk and in the memory set.
        """

    def _select(
        self, layer: int, boundary: int, score: Tensor, memory: Tensor, start: int, stop: int
    ) -> Tensor:
        """Memory set after chunk [start, stop) as a mask [Hs, N]."""
        policy = self.policy
        candidate = memory.clone()
        candidate[:, start:stop] = True
        candidate[:, stop - policy.local :] = False
        rank = torch.where(score < NEGLIGIBLE, 0.0, score)
        rank = torch.where(candidate, rank, -torch.inf)
        chosen = torch.zeros_like(memory)
        for head in range(len(rank)):
            best = torch.sort(rank[head], descending=True, stable=True).indices[
                : policy.memory - policy.local
            ]
            chosen[head, best] = True
        chosen[:, stop - policy.local : stop] = True
        if self.adopt is None:
            return chosen
        return self._checked(chosen, torch.from_numpy(self.adopt[layer, boundary]).long(), rank)


def _alike(missing: Tensor, extra: Tensor, tie: float) -> bool:
    """Whether equally many entries of two sets have nearly equal ranks. Infinite ranks never tie: those of
    sinks, and of tokens that could not be chosen.
    """
    ranks = torch.cat((missing, extra))
    if len(missing) != len(extra) or not bool(ranks.isfinite().all()):
        return False
    return not len(ranks) or bool(ranks.max() - ranks.min() <= tie * ranks.abs().max())
