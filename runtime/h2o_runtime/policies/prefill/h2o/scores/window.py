"""Votes of a chunk's last queries: they replace the scores of all rows that these queries see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from h2o_runtime.components.options import option
from h2o_runtime.devices import Tensor
from h2o_runtime.errors import ConfigError
from h2o_runtime.operators import CACHED_CANDIDATE_SCORE
from h2o_runtime.policies.prefill.h2o.chain import ChosenAhead
from h2o_runtime.policies.prefill.h2o.memory import LayerMemory
from h2o_runtime.policies.prefill.h2o.policy import score_rule
from h2o_runtime.policies.prefill.policy import LayerCall
from h2o_runtime.schedule import Span


@dataclass(frozen=True)
class Window(ChosenAhead):
    """The last queries of a chunk score the memory set and the chunk by one softmax over both."""

    score_title: ClassVar[str] = "votes of a chunk's last queries"
    spanning_lists: ClassVar[bool] = False  # votes are counted separately for each key head

    score: Literal["window"] = score_rule("window")
    window: int = option(64, "Last queries of a chunk that vote.", least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window > self.local:
            raise ConfigError(
                f"window ({self.window}) must be at most local ({self.local}): lower it, or raise local",
                field="window",
            )

    def vote(self, call: LayerCall, memory: LayerMemory, chunk: Span) -> Tensor:
        window = min(self.window, len(chunk))
        call.provider.run(
            CACHED_CANDIDATE_SCORE,
            call.kv,
            q_window=call.q[chunk.stop - window : chunk.stop],
            k=call.k[chunk.start : chunk.stop],
            memory=memory.current,
            score_mem=memory.colsum,
            score_chunk=memory.score[call.past + chunk.start : call.past + chunk.stop],
        )
        return memory.colsum
