"""The score rule `window`: its step as a graph."""

from __future__ import annotations

from dataclasses import dataclass

from onnx import NodeProto

from h2o_export.attention_graphs.graph import constant, operator, standard
from h2o_export.policies.h2o.score_entry import ScoreEntry
from h2o_export.policies.h2o.steps import ChainPhase2, ChunkRows
from h2o_runtime import devices
from h2o_runtime.attention import AttentionProvider, AttentionShape
from h2o_runtime.operators import CACHED_CANDIDATE_SCORE
from h2o_runtime.policies.prefill.h2o.scores.window import Window


@dataclass(frozen=True)
class VotePhase2(ChainPhase2):
    policy: Window

    def update_nodes(self, shape: AttentionShape) -> list[NodeProto]:
        """score_next = score, with the votes of the chunk's last queries in the rows of memory set and
        chunk.
        """
        return [
            constant("window_start", [-self.policy.window]),
            constant("end", [2**31 - 1]),
            constant("rows", [0]),
            constant("two", [2]),
            constant("one", [1]),
            standard("Slice", ("q", "window_start", "end", "rows"), "q_window"),
            standard("Slice", ("chunk_range", "rows", "one", "rows"), "start"),
            standard("Slice", ("chunk_range", "one", "two", "rows"), "stop"),
            standard("Slice", ("k_cache", "start", "stop", "rows"), "k_chunk"),
            operator("MemoryGather", ("k_cache", "v_cache", "memory"), ("k_mem", "v_mem")),
            operator(
                "CandidateScore",
                ("q_window", "k_chunk", "k_mem"),
                ("score_memory", "score_chunk"),
                scale=shape.scale,
                softcap=shape.softcap,
            ),
            standard("Transpose", ("memory",), "memory_rows", perm=[1, 0]),
            standard("Transpose", ("score_memory",), "score_memory_rows", perm=[1, 0]),
            standard(
                "ScatterElements", ("score", "memory_rows", "score_memory_rows"), "score_ranked", axis=0
            ),
            standard("Shape", ("score",), "capacity", start=0, end=1),
            standard("Slice", ("score_ranked", "rows", "start", "rows"), "score_head"),
            standard("Slice", ("score_ranked", "stop", "capacity", "rows"), "score_rest"),
            standard("Concat", ("score_head", "score_chunk", "score_rest"), "score_next", axis=0),
        ]

    def update(
        self, provider: AttentionProvider, chunk: ChunkRows, rows: devices.Tensor, score: devices.Tensor
    ) -> bool:
        window, k = chunk.q[-self.policy.window :], chunk.kv.k[chunk.start : chunk.stop]
        provider.run(
            CACHED_CANDIDATE_SCORE,
            chunk.kv,
            q_window=window,
            k=k,
            memory=chunk.memory,
            score_mem=rows,
            score_chunk=score,
        )
        return False


class LastQueriesEntry(ScoreEntry[Window]):
    policy = Window
    phase2 = VotePhase2
