"""The ONNX function bodies, which are the operators' specification, against the float64 reference."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.reference import operators
from tests.reference.delta import DeltaCase
from tests.reference.mamba2 import Mamba2Case
from tests.runtime.block_cases import BlockCall, block_calls
from tests.runtime.operator_cases import Array, Case, cases, check, provider_for, run_operator
from tests.runtime.query_cases import Call, calls

from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.errors import BundleError
from h2o_runtime.operators import MEMORY_SELECT
from h2o_runtime.providers.functions import FunctionProvider


@settings(max_examples=18, deadline=None)
@given(case=cases(), chunk_size=st.integers(1, 50))
@example(case=Case(n=1), chunk_size=16)
@example(case=Case(n=5), chunk_size=16)  # n < S
@example(case=Case(n=40), chunk_size=16)  # a partial last chunk
@example(case=Case(n=32), chunk_size=16)
@example(case=Case(n=33, group=8, d=128, spread=400.0), chunk_size=32)
def test_intra_attention(case: Case, chunk_size: int) -> None:
    q, k, v = case.q(), case.kv(), case.kv()
    attributes: dict[str, Any] = {
        "chunk_size": chunk_size,
        "scale": case.scale,
        "score_heads": case.score_heads,
    }
    got = run_operator("ChunkedIntraAttention", {"q": q, "k": k, "v": v}, **attributes)
    check(case, got, lambda: operators.chunked_intra_attention(q, k, v, **attributes))
    np.testing.assert_allclose(got[3].sum(), case.n * case.query_heads, rtol=1e-5)


@settings(max_examples=9, deadline=None)
@given(case=cases())
def test_gather_copies_bits(case: Case) -> None:
    cap = case.slots + case.n
    k, v, memory = case.kv(cap), case.kv(cap), case.memory(cap)
    got = run_operator("MemoryGather", {"k_cache": k, "v_cache": v, "memory": memory})
    for actual, expected in zip(got, operators.memory_gather(k, v, memory), strict=True):
        assert actual.dtype == case.dtype
        np.testing.assert_array_equal(actual, expected)


@settings(max_examples=15, deadline=None)
@given(case=cases())
@example(case=Case(n=1, slots=1))
@example(case=Case(n=7, slots=30, group=8, per_query=True, spread=400.0))
def test_memory_attention(case: Case) -> None:
    q = case.q()
    k_mem, v_mem = (
        case.rng.normal(size=(2, case.score_heads, case.slots, case.d)).astype(case.dtype)[i] for i in (0, 1)
    )
    inputs = {"q": q, "k_mem": k_mem, "v_mem": v_mem}
    got = run_operator("MemoryAttention", inputs, scale=case.scale)
    check(case, got, lambda: operators.memory_attention(q, k_mem, v_mem, scale=case.scale))


def random_state(case: Case, empty: float) -> tuple[Array, Array, Array]:
    """o, m and l of a softmax; a share `empty` of the rows has seen no key, its output being whatever it is."""
    shape = (case.n, case.query_heads)
    o = case.rng.normal(size=(*shape, case.d)).astype(case.dtype)
    m = (case.spread * case.rng.normal(size=shape)).astype(np.float32)
    l = case.rng.uniform(1.0, 50.0, size=shape).astype(np.float32)
    nothing = case.rng.uniform(size=shape) < empty
    m[nothing], l[nothing] = -np.inf, 0.0
    o[nothing] = 0.0
    return o, m, l


@settings(max_examples=15, deadline=None)
@given(case=cases(), empty=st.sampled_from([0.0, 0.3, 1.0]))
@example(case=Case(n=8, spread=400.0), empty=0.3)
@example(case=Case(n=1), empty=1.0)
def test_fusion(case: Case, empty: float) -> None:
    o_a, m_a, l_a = random_state(case, empty)
    o_b, m_b, l_b = random_state(case, empty)
    inputs = {"o_a": o_a, "m_a": m_a, "l_a": l_a, "o_b": o_b, "m_b": m_b, "l_b": l_b}
    got = run_operator("OnlineSoftmaxFusion", inputs)
    check(case, got, lambda: operators.online_softmax_fusion(o_a, m_a, l_a, o_b, m_b, l_b))
    for mine, (o, m, l) in ((l_b == 0, (o_a, m_a, l_a)), (l_a == 0, (o_b, m_b, l_b))):
        np.testing.assert_array_equal(got[1][mine], m[mine])  # an empty state changes nothing, to the bit
        np.testing.assert_array_equal(got[2][mine], l[mine])
        np.testing.assert_allclose(got[0][mine], o[mine], rtol=np.finfo(case.dtype).eps)


def test_fusion_ignores_what_an_empty_state_left_in_its_output() -> None:
    o, m, l = np.ones((1, 1, 4), np.float32), np.zeros((1, 1), np.float32), np.ones((1, 1), np.float32)
    junk = np.full_like(o, np.nan)
    nothing = {"m": np.full_like(m, -np.inf), "l": np.zeros_like(l)}
    first = {"o_a": o, "m_a": m, "l_a": l, "o_b": junk, "m_b": nothing["m"], "l_b": nothing["l"]}
    second = {"o_a": junk, "m_a": nothing["m"], "l_a": nothing["l"], "o_b": o, "m_b": m, "l_b": l}
    for inputs in (first, second):
        for actual, expected in zip(run_operator("OnlineSoftmaxFusion", inputs), (o, m, l), strict=True):
            np.testing.assert_array_equal(actual, expected)


@settings(max_examples=15, deadline=None)
@given(case=cases(), extra=st.integers(0, 20))
@example(case=Case(n=20, slots=1, group=4, spread=100.0), extra=0)
@example(case=Case(n=34, kv_heads=1, group=8, spread=0.0), extra=0)
def test_fused_memory_attention(case: Case, extra: int) -> None:
    """Against the reference, and equal to the three operators that it stands for."""
    past = case.slots + extra
    q, k, v, memory = case.q(), case.kv(past + case.n), case.kv(past + case.n), case.memory(past)
    o, m, l, _ = run_operator(
        "ChunkedIntraAttention",
        {"q": q, "k": k[past:], "v": v[past:]},
        chunk_size=case.n,
        scale=case.scale,
        score_heads=case.score_heads,
    )
    inputs = {"q": q, "k_cache": k, "v_cache": v, "memory": memory, "o_intra": o, "m_intra": m, "l_intra": l}
    got = run_operator("MemoryFusedAttention", inputs, scale=case.scale)
    check(case, got, lambda: operators.memory_fused_attention(q, k, v, memory, o, m, l, scale=case.scale))

    k_mem, v_mem = run_operator("MemoryGather", {"k_cache": k, "v_cache": v, "memory": memory})
    attended = {"q": q, "k_mem": k_mem, "v_mem": v_mem}
    o_b, m_b, l_b, colsum = run_operator("MemoryAttention", attended, scale=case.scale)
    states = {"o_a": o, "m_a": m, "l_a": l, "o_b": o_b, "m_b": m_b, "l_b": l_b}
    fused, _, _ = run_operator("OnlineSoftmaxFusion", states)
    np.testing.assert_allclose(got[0], fused, rtol=np.finfo(case.dtype).eps, atol=1e-6)
    np.testing.assert_allclose(got[1], colsum, rtol=1e-6)


@settings(max_examples=15, deadline=None)
@given(case=cases(least_slots=0), window=st.integers(1, 40))
@example(case=Case(n=1, slots=0), window=1)
@example(case=Case(n=20, slots=0, group=4, per_query=True), window=20)
@example(case=Case(n=20, slots=9, spread=400.0), window=3)
def test_candidate_score(case: Case, window: int) -> None:
    window = min(window, case.n)
    q, k = case.q(window), case.kv()
    k_mem = case.rng.normal(size=(case.score_heads, case.slots, case.d)).astype(case.dtype)
    got = run_operator("CandidateScore", {"q_window": q, "k": k, "k_mem": k_mem}, scale=case.scale)
    assert (got[0].shape, got[1].shape) == ((case.score_heads, case.slots), (case.n, case.score_heads))

    # One softmax in two pieces: the errors of a piece that holds next to nothing of it say nothing.
    def joined(votes: tuple[Array, ...]) -> tuple[Array, ...]:
        return (np.concatenate([votes[0].T, votes[1]]),)

    check(case, joined(got), lambda: joined(operators.candidate_score(q, k, k_mem, scale=case.scale)))
    np.testing.assert_allclose(got[0].sum() + got[1].sum(), window * case.query_heads, rtol=1e-5)
    future = np.arange(case.n) > np.arange(case.n - window, case.n)[:, None]  # [w, n]
    np.testing.assert_array_equal(got[1][future.all(axis=0)], 0.0)


@dataclass(frozen=True)
class Selecting:
    """A call of MemorySelect."""

    score: Array  # float32 [cap, Hs]
    memory: Array  # int32 [Hs, Mp]
    start: int
    stop: int
    local: int
    heavy: int


@st.composite
def selecting(draw: st.DrawFn) -> Selecting:
    """Any call that the contract allows: candidates suffice, and the range holds the local window."""
    heads = draw(st.integers(1, 4))
    start, rows = draw(st.integers(0, 40)), draw(st.integers(1, 40))
    slots = draw(st.integers(0, start))
    local = draw(st.integers(1, rows))
    heavy = draw(st.integers(0, slots + rows - local))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 20)))
    cap = start + rows + draw(st.integers(0, 5))
    kind = draw(st.sampled_from(["distinct", "ties", "zeros", "tiny", "infinite"]))
    score = rng.uniform(0.0, 50.0, (cap, heads))
    if kind == "ties":
        score = rng.integers(0, 3, (cap, heads)).astype(np.float64)
    elif kind == "zeros":
        score = np.zeros((cap, heads))
    elif kind == "tiny":  # on both sides of the border below which all scores count as 0
        score = 10.0 ** rng.uniform(-40, -20, (cap, heads))
    elif kind == "infinite":
        score[rng.integers(0, cap, 3)] = np.inf
    memory = np.array([np.sort(rng.permutation(start)[:slots]) for _ in range(heads)], np.int32)
    return Selecting(
        score.astype(np.float32), memory.reshape(heads, slots), start, start + rows, local, heavy
    )


@settings(max_examples=18, deadline=None)
@given(call=selecting())
def test_selection_is_exactly_the_references(tiny_bundle: Path, call: Selecting) -> None:
    c = call
    expected = operators.memory_select(c.score, c.memory, c.start, c.stop, local=c.local, heavy=c.heavy)
    out = np.full_like(expected, -1)
    provider_for(tiny_bundle, Case()).run(
        MEMORY_SELECT,
        score=c.score,
        memory=c.memory,
        chunk_range=(c.start, c.stop),
        local=c.local,
        memory_next=out,
    )
    assert out.dtype == np.int32
    np.testing.assert_array_equal(out, expected)


def provider_of_edited_body(
    bundle: Path, folder: Path, name: str, edit: Callable[[onnx.FunctionProto], None]
) -> FunctionProvider:
    """Of a bundle whose function of that name is another. The file stays as long: the manifest has its size."""
    opened = Bundle.open(shutil.copytree(bundle, folder / "bundle"))
    path = opened.path(opened.graph("decode"))
    model = onnx.load(path)
    edit(next(body for body in model.functions if body.name == name))
    size = path.stat().st_size
    if model.ByteSize() < size:
        model.producer_version = "0"
        model.producer_version = "0" * (1 + size - model.ByteSize())
    onnx.save(model, path)
    return provider_for(opened.folder, Case())


def test_a_body_with_an_attribute_that_is_gone_is_named(tiny_bundle: Path, tmp_path: Path) -> None:
    def edit(body: onnx.FunctionProto) -> None:
        body.attribute[list(body.attribute).index("local")] = "early"

    provider = provider_of_edited_body(tiny_bundle, tmp_path, "MemorySelect", edit)
    with pytest.raises(BundleError, match=r"MemorySelect asks for early, .* export the checkpoint again"):
        provider.run(
            MEMORY_SELECT,
            score=np.ones((8, 1), np.float32),
            memory=np.empty((1, 0), np.int32),
            chunk_range=(0, 8),
            local=1,
            memory_next=np.empty((1, 3), np.int32),
        )


def test_a_body_that_lacks_an_attribute_is_named(tiny_bundle: Path, tmp_path: Path) -> None:
    def edit(body: onnx.FunctionProto) -> None:
        body.attribute.remove("score_heads")

    provider = provider_of_edited_body(tiny_bundle, tmp_path, "QuerySelect", edit)
    call = Call(n=3, before=9, tile=3, stride=1, tiles=1, reach=0, local=2, heavy=3, listed=0)
    with pytest.raises(
        BundleError, match="QuerySelect does not know score_heads; export the checkpoint again"
    ):
        call.run(provider)


def test_a_body_that_an_older_bundle_lacks_is_named(tiny_bundle: Path, tmp_path: Path) -> None:
    def edit(body: onnx.FunctionProto) -> None:
        body.name = "RoundSelect"

    provider = provider_of_edited_body(tiny_bundle, tmp_path, "BlockSelect", edit)
    with pytest.raises(BundleError, match="no function BlockSelect; export the checkpoint again"):
        BlockCall(3, 30, 2, 1, block_size=8, local=2, heavy=3).run(provider)


@settings(max_examples=7, deadline=None)
@given(call=block_calls())
def test_blocks_are_selected_as_the_reference_selects_them(tiny_bundle: Path, call: BlockCall) -> None:
    call.check(call.run(FunctionProvider(Bundle.open(tiny_bundle), threads=2)))


@settings(max_examples=7, deadline=None)
@given(call=block_calls())
@example(call=BlockCall(n=3, first=5, tile=2, stride=1, block_size=8, local=2, heavy=3))  # no whole block
@example(call=BlockCall(n=3, first=30, tile=2, stride=1, block_size=8, local=2, heavy=3))  # within one block
def test_all_tiles_of_a_node_select_blocks_at_once(call: BlockCall) -> None:
    (got,) = run_operator("BlockSelect", call.inputs, **call.attributes)
    call.check(got)


@settings(max_examples=7, deadline=None)
@given(call=calls())
def test_queries_select_what_the_reference_selects(tiny_bundle: Path, call: Call) -> None:
    call.check(call.run(FunctionProvider(Bundle.open(tiny_bundle), threads=2)))


@settings(max_examples=8, deadline=None)
@given(call=calls())
def test_all_tiles_of_a_node_select_at_once(call: Call) -> None:
    """The body as it stands in a graph; the provider runs it tile by tile."""
    (got,) = run_operator("QuerySelect", call.inputs, **call.attributes)
    call.check(got)


@settings(max_examples=12, deadline=None)
@given(case=cases(), past=st.integers(0, 40), unused=st.integers(0, 5), window=st.integers(0, 50))
@example(case=Case(n=1), past=0, unused=3, window=0)
@example(case=Case(n=1, group=8, spread=400.0), past=40, unused=0, window=0)
@example(case=Case(n=4), past=40, unused=2, window=1)
def test_cached_attention(case: Case, past: int, unused: int, window: int) -> None:
    length = past + case.n
    q, k, v = case.q(), case.kv(length + unused), case.kv(length + unused)
    k[length:] = v[length:] = np.nan  # rows that are not valid yet may hold anything
    inputs = {"q": q, "k_cache": k, "v_cache": v, "length": np.array(length, np.int64)}
    attributes: dict[str, float] = {"scale": case.scale}
    if window:
        attributes["window"] = window
    got = run_operator("CachedAttention", inputs, **attributes)
    check(case, got, lambda: (operators.cached_attention(q, k, v, length, **attributes),))


@settings(max_examples=7, deadline=None)
@given(
    n=st.integers(1, 20),
    heads=st.sampled_from([(1, 1), (4, 2), (3, 1)]),
    dtype=st.sampled_from(["float32", "float16"]),
)
def test_gated_delta(n: int, heads: tuple[int, int], dtype: str) -> None:
    case = DeltaCase(n, *heads, dtype=dtype)
    case.check(*run_operator("GatedDelta", case.inputs, scale=case.scale))


@settings(max_examples=7, deadline=None)
@given(
    n=st.integers(1, 20),
    heads=st.sampled_from([(1, 1), (4, 2), (3, 1)]),
    dtype=st.sampled_from(["float32", "float16"]),
)
def test_mamba2(n: int, heads: tuple[int, int], dtype: str) -> None:
    case = Mamba2Case(n, *heads, dtype=dtype)
    case.check(*run_operator("Mamba2", case.inputs))
