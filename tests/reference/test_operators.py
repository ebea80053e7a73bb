"""Pins the operator references to hand-computed cases and to direct, unfused softmax."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.reference import operators
from tests.reference.operators import Array, Float64


def direct_softmax(q: Array, keys: Array, values: Array, scale: float) -> Float64:
    """Softmax of one query [d] over keys and values [K, d], from the textbook."""
    weights = np.exp(scale * (keys @ q))
    result: Float64 = weights @ values / weights.sum()
    return result


def tensors(
    n: int, query_heads: int, kv_heads: int, d: int, seed: int = 0
) -> tuple[Float64, Float64, Float64]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, query_heads, d)), *rng.normal(size=(2, n, kv_heads, d))


def column(*scores: float) -> Float64:
    return np.array(scores)[:, None]  # [cap, 1]


NO_MEMORY = np.zeros((1, 0), np.int32)


# --- Selection --------------------------------------------------------------------------------------------


def test_select_takes_the_local_window_and_the_best_of_the_rest() -> None:
    score = column(5.0, 1.0, 9.0, 2.0, 7.0, 0.0, 8.0, 0.0)
    # Range 4 … 7, memory {0, 2, 3}: 6 and 7 are local; of 0, 2, 3, 4 the best two are 2 (9.0) and 4 (7.0).
    memory = np.array([[0, 2, 3]], np.int32)
    got = operators.memory_select(score, memory, 4, 8, local=2, heavy=2)
    assert got.dtype == np.int32
    assert got.tolist() == [[2, 4, 6, 7]]
    # 1 is in neither the memory nor the range: no score brings it back.
    score[1] = 100.0
    assert operators.memory_select(score, memory, 4, 8, local=2, heavy=2).tolist() == [[2, 4, 6, 7]]


def test_select_gives_ties_to_the_lower_index() -> None:
    score = column(1.0, 3.0, 1.0, 3.0, 1.0, 0.0)
    assert operators.memory_select(score, NO_MEMORY, 0, 6, local=1, heavy=1).tolist() == [[1, 5]]
    assert operators.memory_select(score, NO_MEMORY, 0, 6, local=1, heavy=3).tolist() == [[0, 1, 3, 5]]
    # A tie between a remembered token and one of the chunk goes to the remembered one.
    memory = np.array([[2]], np.int32)
    assert operators.memory_select(score, memory, 4, 6, local=1, heavy=1).tolist() == [[2, 5]]


def test_margin_is_the_gap_at_the_border() -> None:
    score = column(4.0, 10.0, 9.0, 0.0)
    span: dict[str, Any] = {"score": score, "memory": NO_MEMORY, "start": 0, "stop": 4, "local": 1}
    np.testing.assert_allclose(operators.selection_margin(**span, heavy=1), [0.1])
    np.testing.assert_allclose(operators.selection_margin(**span, heavy=2), [5 / 9])
    assert operators.selection_margin(**span, heavy=3) == [np.inf]  # nothing was left out
    assert operators.selection_margin(**span, heavy=0) == [np.inf]


def test_only_near_ties_may_swap() -> None:
    score = column(5.0, 1.0, 1.000001, 1.1, 0.0)
    expected = np.array([[0, 2, 4]])

    def same(*row: int) -> bool:
        return operators.same_but_for_near_ties(expected, np.array([row]), score, stop=5, local=1)

    assert same(0, 2, 4)
    assert same(0, 1, 4)
    assert not same(0, 3, 4)
    assert not same(0, 1, 2)  # the local token is missing
    assert not same(2, 0, 4)
    assert not same(0, 2, 5)
    assert not same(0, 4)


# --- Attention --------------------------------------------------------------------------------------------


def test_intra_attention_by_hand() -> None:
    # Two chunks, of two rows and of one. Logits of row 1 are ln 3 and 0: probabilities 3/4 and 1/4.
    q = np.array([0.0, 1.0, 5.0])[:, None, None]
    k = np.array([np.log(3.0), 0.0, 1.0])[:, None, None]
    v = np.array([4.0, 8.0, 6.0])[:, None, None]
    o, m, l, colsum = operators.chunked_intra_attention(q, k, v, chunk_size=2, scale=1.0, score_heads=1)
    np.testing.assert_allclose(o[:, 0, 0], [4.0, 5.0, 6.0])
    np.testing.assert_allclose(m[:, 0], [0.0, np.log(3.0), 5.0])
    np.testing.assert_allclose(l[:, 0], [1.0, 4 / 3, 1.0])
    np.testing.assert_allclose(colsum[:, 0], [1.75, 0.25, 1.0])


@pytest.mark.parametrize("score_heads", [2, 4])
def test_fusion_of_both_passes_is_one_softmax(score_heads: int) -> None:
    n, start, query_heads, kv_heads, d, scale = 16, 9, 4, 2, 8, 0.4
    q, k, v = tensors(n, query_heads, kv_heads, d)
    rng = np.random.default_rng(1)
    memory = np.stack([np.sort(rng.permutation(start)[:5]) for _ in range(score_heads)]).astype(np.int32)
    o_a, m_a, l_a, _ = operators.chunked_intra_attention(
        q[start:], k[start:], v[start:], chunk_size=n, scale=scale, score_heads=score_heads
    )
    fused, colsum = operators.memory_fused_attention(q[start:], k, v, memory, o_a, m_a, l_a, scale=scale)
    k_mem, v_mem = operators.memory_gather(k, v, memory)
    o_b, m_b, l_b, inter = operators.memory_attention(q[start:], k_mem, v_mem, scale=scale)
    o, m, l = operators.online_softmax_fusion(o_a, m_a, l_a, o_b, m_b, l_b)
    np.testing.assert_array_equal(fused, o)
    np.testing.assert_array_equal(colsum, inter)
    for h in range(query_heads):
        for i in range(start, n):
            rows = [*memory[h // (query_heads // score_heads)], *range(start, i + 1)]
            keys, values = k[rows, h // 2], v[rows, h // 2]
            np.testing.assert_allclose(o[i - start, h], direct_softmax(q[i, h], keys, values, scale))
            logits = scale * (keys @ q[i, h])
            total = m[i - start, h] + np.log(l[i - start, h])
            np.testing.assert_allclose(total, np.log(np.exp(logits).sum()))
    np.testing.assert_allclose(colsum.sum(), query_heads * (n - start))


def test_fusion_survives_huge_logits_and_empty_states() -> None:
    full = (np.array([[[2.0, 4.0]]]), np.array([[1000.0]]), np.array([[3.0]]))
    far = (np.array([[[9.0, 9.0]]]), np.array([[-1000.0]]), np.array([[5.0]]))
    empty = (np.zeros((1, 1, 2)), np.full((1, 1), -np.inf), np.zeros((1, 1)))
    for a, b in ((full, empty), (empty, full), (full, far), (far, full)):
        for got, expected in zip(operators.online_softmax_fusion(*a, *b), full, strict=True):
            np.testing.assert_array_equal(got, expected)
    for got, expected in zip(operators.online_softmax_fusion(*empty, *empty), empty, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_an_empty_memory_is_an_empty_state() -> None:
    q, k, v = tensors(3, 2, 1, 4)
    k_mem, v_mem = operators.memory_gather(k, v, NO_MEMORY)
    o, m, l, colsum = operators.memory_attention(q, k_mem, v_mem, scale=1.0)
    assert k_mem.shape == v_mem.shape == (1, 0, 4)
    assert not o.any()
    assert not l.any()
    assert np.all(m == -np.inf)
    assert colsum.shape == (1, 0)


def test_gather_reads_each_heads_rows() -> None:
    cache = np.arange(3 * 2 * 1, dtype=np.float16).reshape(3, 2, 1)  # row r, head h holds 2r + h
    k_mem, v_mem = operators.memory_gather(cache, cache + 10, np.array([[0, 2], [1, 2]]))
    assert k_mem.dtype == np.float16
    assert k_mem[..., 0].tolist() == [[0, 4], [3, 5]]
    assert v_mem[..., 0].tolist() == [[10, 14], [13, 15]]
    # Four score heads on two key/value heads: score heads 0 and 1 read head 0.
    k_mem, _ = operators.memory_gather(cache, cache, np.array([[0], [1], [0], [1]]))
    assert k_mem[..., 0].tolist() == [[0], [2], [1], [3]]


def test_cached_attention_sees_up_to_itself() -> None:
    q, k, v = tensors(9, 4, 2, 8)
    o = operators.cached_attention(q[5:7], k, v, 7, scale=0.5)  # rows 7 and 8 of the cache are not valid yet
    for r, i in enumerate((5, 6)):
        for h in range(4):
            expected = direct_softmax(q[i, h], k[: i + 1, h // 2], v[: i + 1, h // 2], 0.5)
            np.testing.assert_allclose(o[r, h], expected)


@pytest.mark.parametrize("score_heads", [2, 4])
@pytest.mark.parametrize("slots", [0, 5])
def test_votes_are_joint_softmaxes(score_heads: int, slots: int) -> None:
    n, start, w, scale = 14, 8, 3, 0.7
    q, k, v = tensors(n, 4, 2, 8)
    memory = np.tile(np.arange(slots, dtype=np.int32), (score_heads, 1))
    k_mem, _ = operators.memory_gather(k, v, memory)
    old, new = operators.candidate_score(q[n - w :], k[start:], k_mem, scale=scale)
    expected = np.zeros((n, score_heads))
    for h in range(4):
        for i in range(n - w, n):
            rows = [*range(slots), *range(start, i + 1)]
            weights = np.exp(scale * (k[rows, h // 2] @ q[i, h]))
            expected[rows, h // (4 // score_heads)] += weights / weights.sum()
    np.testing.assert_allclose(old, expected[:slots].T)
    np.testing.assert_allclose(new, expected[start:])
