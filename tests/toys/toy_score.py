"""A score rule in one file: every k-th token scores 1, and all others 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from h2o_runtime.components.options import option
from h2o_runtime.policies.prefill import LayerCall
from h2o_runtime.policies.prefill.h2o.chain import ChosenAhead
from h2o_runtime.policies.prefill.h2o.memory import LayerMemory
from h2o_runtime.policies.prefill.h2o.policy import score_rule
from h2o_runtime.schedule import Span


@dataclass(frozen=True)
class EveryKth(ChosenAhead):
    score_title: ClassVar[str] = "every k-th token"

    score: Literal["every"] = score_rule("every")
    every: int = option(4, "Every so many-th token is remembered.", least=1)

    def vote(self, call: LayerCall, memory: LayerMemory, chunk: Span) -> None:
        """The chunk's own scores alone: those of the memory stay."""
        rows = np.arange(call.past + chunk.start, call.past + chunk.stop)
        score = memory.score[rows[0] : rows[-1] + 1]
        score[:] = (rows % self.every == 0).astype(np.float32)[:, None]
