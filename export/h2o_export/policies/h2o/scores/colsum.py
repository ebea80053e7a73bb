"""The score rule `colsum`: its step as a graph."""

from __future__ import annotations

from dataclasses import dataclass

from onnx import NodeProto

from h2o_export.attention_graphs.graph import standard
from h2o_export.policies.h2o.score_entry import ScoreEntry
from h2o_export.policies.h2o.steps import ChainPhase2, ChunkRows
from h2o_runtime import devices
from h2o_runtime.attention import AttentionProvider, AttentionShape
from h2o_runtime.policies.prefill.h2o.scores.colsum import ColumnSum


@dataclass(frozen=True)
class ColumnSumPhase2(ChainPhase2):
    def update_nodes(self, shape: AttentionShape) -> list[NodeProto]:
        """score_next = score, with colsum added in the rows of the memory set."""
        return [
            standard("Transpose", ("memory",), "memory_rows", perm=[1, 0]),  # [Mp, Hs]
            standard("Transpose", ("colsum",), "colsum_rows", perm=[1, 0]),
            standard("GatherElements", ("score", "memory_rows"), "score_before", axis=0),
            standard("Add", ("score_before", "colsum_rows"), "score_after"),
            standard("ScatterElements", ("score", "memory_rows", "score_after"), "score_next", axis=0),
        ]

    def update(
        self, provider: AttentionProvider, chunk: ChunkRows, rows: devices.Tensor, score: devices.Tensor
    ) -> bool:
        return True


class ColumnSumsEntry(ScoreEntry[ColumnSum]):
    policy = ColumnSum
    phase2 = ColumnSumPhase2
