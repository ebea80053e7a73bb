"""The function bodies inside the attention graphs of a bundle, against the float64 reference."""

from __future__ import annotations

from typing import Literal

import numpy as np
import onnx
import pytest
from tests.prefill import prefill_of
from tests.reference import operators
from tests.runtime.operator_cases import Array, Case, check, run_operator

from h2o_export.attention_graphs import AttentionGraph
from h2o_export.operators import OPERATORS
from h2o_export.policies import policy_graphs
from h2o_runtime.attention import AttentionShape
from h2o_runtime.ort.session import open_session

RULES = [(score, heads) for score in ("colsum", "window") for heads in ("kv", "query")]
Score = Literal["colsum", "window"]
Heads = Literal["kv", "query"]
S, L, H, W = 16, 4, 5, 3


def graphs_of(case: Case, score: Score, heads: Heads) -> dict[str, AttentionGraph]:
    window = {"window": W} if score == "window" else {}
    prefill = prefill_of(chunk_size=S, batch_size=64, local=L, heavy=H, score=score, heads=heads, **window)
    shape = AttentionShape(case.query_heads, case.kv_heads, case.d, case.scale, np.dtype(case.dtype))
    return {graph.spec.name: graph for graph in policy_graphs(prefill, shape)}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("score", "heads"), RULES)
def test_attention_graphs_are_valid(dtype: str, score: Score, heads: Heads) -> None:
    graphs = graphs_of(Case(group=4, dtype=dtype), score, heads)
    assert list(graphs) == ["phase1", "phase2", "decode"]
    for graph in graphs.values():
        onnx.checker.check_model(graph.model, full_check=True)
        inferred = onnx.shape_inference.infer_shapes(graph.model, check_type=True, strict_mode=True)
        assert [value.name for value in inferred.graph.input] == [spec.name for spec in graph.spec.inputs]
        assert [value.name for value in inferred.graph.output] == [spec.name for spec in graph.spec.outputs]
        assert {function.name for function in graph.model.functions} == {
            operator.name for operator in OPERATORS
        }
        assert not graph.model.graph.initializer  # no weights
        assert all(node.name for node in graph.model.graph.node)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_decode_is_cached_attention(dtype: str) -> None:
    case = Case(n=7, group=4, d=64, dtype=dtype)
    q, k, v = case.q(), case.kv(30), case.kv(30)
    graph = graphs_of(case, "colsum", "kv")["decode"]
    inputs = {"q": q, "k_cache": k, "v_cache": v, "length": np.array(20, np.int64)}
    got = open_session(graph.model.SerializeToString(), 2).run(None, inputs)
    check(case, tuple(got), lambda: (operators.cached_attention(q, k, v, 20, scale=case.scale),))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("slots", [L + H, S])
@pytest.mark.parametrize(("score", "heads"), RULES)
def test_phase2_is_its_operators_in_sequence(score: Score, heads: Heads, slots: int, dtype: str) -> None:
    """Attend to the memory and fuse, update the scores, select: one chunk's step of the runtime."""
    past, cap = 2 * S, 4 * S
    case = Case(n=S, group=2, per_query=heads == "query", slots=slots, dtype=dtype, seed=1)
    q, k, v, memory = case.q(), case.kv(cap), case.kv(cap), case.memory(past)
    chunk = slice(past, past + S)
    before = case.rng.uniform(0.0, 9.0, (cap, case.score_heads)).astype(np.float32)
    o_a, m_a, l_a, colsum_a = run_operator(
        "ChunkedIntraAttention",
        {"q": q, "k": k[chunk], "v": v[chunk]},
        chunk_size=S,
        scale=case.scale,
        score_heads=case.score_heads,
    )
    if score == "colsum":
        before[chunk] = colsum_a
    inputs = {
        "q": q,
        "k_cache": k,
        "v_cache": v,
        "memory": memory,
        "o_intra": o_a,
        "m_intra": m_a,
        "l_intra": l_a,
        "score": before,
        "chunk_range": np.array([past, past + S], np.int64),
    }
    model = graphs_of(case, score, heads)["phase2"].model.SerializeToString()
    o, score_next, memory_next = open_session(model, 2).run(None, inputs)

    def reference() -> tuple[Array, Array]:
        fused, colsum = operators.memory_fused_attention(q, k, v, memory, o_a, m_a, l_a, scale=case.scale)
        after = before.astype(np.float64)
        if score == "colsum":
            for s in range(case.score_heads):
                after[memory[s], s] += colsum[s]
        else:
            k_mem, _ = operators.memory_gather(k, v, memory)
            old, after[chunk] = operators.candidate_score(q[-W:], k[chunk], k_mem, scale=case.scale)
            for s in range(case.score_heads):
                after[memory[s], s] = old[s]
        return fused, after

    check(case, (o, score_next), reference)
    untouched = np.ones((cap, case.score_heads), bool)
    untouched[chunk] = False
    for s in range(case.score_heads):
        untouched[memory[s], s] = False
    np.testing.assert_array_equal(score_next[untouched], before[untouched])
    np.testing.assert_array_equal(
        memory_next, operators.memory_select(score_next, memory, past, past + S, local=L, heavy=H)
    )
