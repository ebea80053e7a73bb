"""The toy score rule as exporter and comparison know it, in one file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onnx import NodeProto
from toy_score import EveryKth

from h2o_export.attention_graphs.graph import standard
from h2o_export.policies.h2o.score_entry import ScoreEntry
from h2o_export.policies.h2o.steps import ChainPhase2, ChunkRows
from h2o_runtime.attention import AttentionProvider, AttentionShape


@dataclass(frozen=True)
class EveryKthPhase2(ChainPhase2):
    policy: EveryKth

    def update_nodes(self, shape: AttentionShape) -> list[NodeProto]:
        """The scores come as an input: nothing that attention finds changes them."""
        return [standard("Identity", ("score",), "score_next")]

    def update(self, provider: AttentionProvider, chunk: ChunkRows, rows: Any, score: Any) -> bool:
        rows[:] = 0
        return True


class EveryKthEntry(ScoreEntry[EveryKth]):
    policy = EveryKth
    phase2 = EveryKthPhase2
