"""The ONNX function bodies, which are the operators' specification, against the float64 reference.

Three ways to run them: one node by itself, through the provider that the runtime uses, and inside the
attention graphs of a bundle. Queries have a given spread of logits: 3 is what a trained model has, 100 leaves
float32's exponential range.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import helper
from tests.reference import operators

from h2o_export.attention import AttentionGraphBuilder
from h2o_export.config import ModelConfig, RopeConfig
from h2o_export.operators import DOMAIN, OPERATORS, VERSION, function_protos
from h2o_export.trace import OPSET
from h2o_runtime import PrefillConfig
from h2o_runtime.attention import AttentionShape, PartialSoftmax
from h2o_runtime.attention.functions import FunctionProvider
from h2o_runtime.backends.onnxruntime import open_session
from h2o_runtime.bundle import Bundle

Array = NDArray[Any]
Tensors = dict[str, Array]
OUTPUTS = {
    "ChunkedIntraAttention": ("o", "m", "l", "colsum"),
    "MemoryGather": ("k_mem", "v_mem"),
    "MemoryAttention": ("o", "m", "l", "colsum"),
    "OnlineSoftmaxFusion": ("o", "m", "l"),
    "MemoryFusedAttention": ("o", "colsum"),
    "CandidateScore": ("score_mem", "score_chunk"),
    "MemorySelect": ("memory_next",),
    "CachedAttention": ("o",),
}
INT32 = ("memory_next",)


# --- Running a body ---------------------------------------------------------------------------------------


def run_operator(name: str, inputs: Tensors, **attributes: float) -> tuple[Array, ...]:
    """Execute one operator as a one-node model, from the exporter's function bodies."""
    kinds = tuple((key, array.dtype.str, array.ndim) for key, array in inputs.items())
    session = _session(name, kinds, tuple(attributes.items()))
    outputs: list[Array] = session.run(None, inputs)
    return tuple(outputs)


@functools.cache
def _session(
    name: str, kinds: tuple[tuple[str, str, int], ...], attributes: tuple[tuple[str, float], ...]
) -> Any:
    values = [
        helper.make_tensor_value_info(key, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), [None] * rank)
        for key, kind, rank in kinds
    ]
    node = helper.make_node(
        name, [key for key, *_ in kinds], OUTPUTS[name], domain=DOMAIN, **dict(attributes)
    )
    outputs = [helper.make_empty_tensor_value_info(output) for output in OUTPUTS[name]]
    graph = helper.make_graph([node], name, values, outputs)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, VERSION)]
    model = helper.make_model(graph, functions=function_protos(), opset_imports=opsets, ir_version=10)
    return open_session(model.SerializeToString(), threads=2)


# --- Inputs and tolerances --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """Sizes of one call; every array follows from them and the seed."""

    n: int = 5
    kv_heads: int = 2
    group: int = 2
    d: int = 32
    per_query: bool = False  # Hs = Hq instead of Hkv
    slots: int = 3
    spread: float = 3.0  # of the logits
    dtype: str = "float32"
    seed: int = 0

    @property
    def query_heads(self) -> int:
        return self.kv_heads * self.group

    @property
    def score_heads(self) -> int:
        return self.query_heads if self.per_query else self.kv_heads

    @property
    def scale(self) -> float:
        return float(np.float32(self.d**-0.5))  # attributes are float32

    @functools.cached_property
    def rng(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)

    def q(self, n: int | None = None) -> Array:
        rows = self.rng.normal(size=(self.n if n is None else n, self.query_heads, self.d))
        return (self.spread * rows).astype(self.dtype)

    def kv(self, n: int | None = None) -> Array:
        return self.rng.normal(size=(self.n if n is None else n, self.kv_heads, self.d)).astype(self.dtype)

    def memory(self, below: int) -> Array:
        rows = [np.sort(self.rng.permutation(below)[: self.slots]) for _ in range(self.score_heads)]
        return np.array(rows, np.int32).reshape(self.score_heads, self.slots)


def cases(least_slots: int = 1, dtypes: tuple[str, ...] = ("float32", "float16")) -> st.SearchStrategy[Case]:
    return st.builds(
        Case,
        n=st.integers(1, 40),
        kv_heads=st.integers(1, 3),
        group=st.sampled_from([1, 2, 4, 8]),
        d=st.sampled_from([32, 64, 80, 128]),
        per_query=st.booleans(),
        slots=st.integers(least_slots, 30),
        spread=st.sampled_from([0.0, 1.0, 3.0, 100.0, 400.0]),
        dtype=st.sampled_from(dtypes),
        seed=st.integers(0, 1 << 20),
    )


def in_precision(dtype: str, reference: Callable[[], tuple[Array, ...]]) -> tuple[Array, ...]:
    """The reference's own result when all of its arithmetic is done in `dtype`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operators, "_float64", lambda *arrays: [np.asarray(a).astype(dtype) for a in arrays])
        return reference()


def check(case: Case, actual: tuple[Array, ...], reference: Callable[[], tuple[Array, ...]]) -> None:
    """Every output within its tolerance of the reference, and of the expected type and shape.

    float32 with logits of a usual size: the fixed tolerance of float32 kernels. Logits of hundreds have rounding
    errors of their own, which the exponential makes relative errors: four roundings of a logit four spreads
    high are allowed for, besides twice the error that the reference makes in float32. float16 is held to the
    same, for the bodies compute in float32, with one rounding of the output as its floor; and so to the wider
    tolerance of float16 kernels, twice the error of the reference computed in float16.

    A row maximum is a dot product, which may come out near 0 by cancelling: its error is measured against the
    spread of all logits, where the few that a small case has are smaller.
    """
    exact = reference()
    usual = case.dtype == "float32" and case.spread <= 3
    rough = exact if usual else in_precision("float32", reference)
    assert len(actual) == len(exact)
    for index, (got, want, low) in enumerate(zip(actual, exact, rough, strict=True)):
        assert got.shape == want.shape
        assert got.dtype == (case.dtype if index == 0 and got.ndim == 3 else np.float32)
        empty = np.isneginf(want)
        np.testing.assert_array_equal(np.isneginf(got), empty)
        difference = np.where(empty, 0.0, got.astype(np.float64) - np.where(empty, 0.0, want))
        want = np.where(empty, 0.0, want)
        if not want.size:
            continue
        is_row_maximum = index == 1 and len(exact) >= 3
        least = case.spread if is_row_maximum else 0.0
        if usual:
            assert np.abs(difference).max() <= 2e-5 * max(np.abs(want).max(), least)
            assert np.linalg.norm(difference) <= 1e-6 * max(np.linalg.norm(want), least * want.size**0.5)
        else:
            low_error = np.abs(np.where(empty, 0.0, low.astype(np.float64) - want)).max()
            floor = np.finfo(got.dtype).eps if got.dtype == np.float16 else 2e-5
            floor += 4 * 4 * case.spread * 2.0**-24
            assert np.abs(difference).max() <= 2 * low_error + floor * np.abs(want).max()


def provider_for(bundle: Path, case: Case) -> FunctionProvider:
    provider = FunctionProvider(Bundle.open(bundle), threads=2)
    provider.activate(
        AttentionShape(case.query_heads, case.kv_heads, case.d, case.scale, np.dtype(case.dtype))
    )
    return provider


def empty_state(case: Case, n: int | None = None) -> PartialSoftmax:
    """Arrays for a result, filled with what no operator may leave behind."""
    rows = case.n if n is None else n
    o = np.full((rows, case.query_heads, case.d), np.nan, case.dtype)
    m, l = np.full((2, rows, case.query_heads), np.nan, np.float32)
    return PartialSoftmax(o, m, l)


# --- One operator at a time -------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
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


@settings(max_examples=25, deadline=None)
@given(case=cases())
def test_gather_copies_bits(case: Case) -> None:
    cap = case.slots + case.n
    k, v, memory = case.kv(cap), case.kv(cap), case.memory(cap)
    got = run_operator("MemoryGather", {"k_cache": k, "v_cache": v, "memory": memory})
    for actual, expected in zip(got, operators.memory_gather(k, v, memory), strict=True):
        assert actual.dtype == case.dtype
        np.testing.assert_array_equal(actual, expected)


@settings(max_examples=50, deadline=None)
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


@settings(max_examples=50, deadline=None)
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


@settings(max_examples=50, deadline=None)
@given(case=cases(), extra=st.integers(0, 20))
@example(case=Case(n=20, slots=1, group=4, spread=100.0), extra=0)
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


@settings(max_examples=50, deadline=None)
@given(case=cases(least_slots=0), window=st.integers(1, 40))
@example(case=Case(n=1, slots=0), window=1)
@example(case=Case(n=20, slots=0, group=4, per_query=True), window=20)
@example(case=Case(n=20, slots=9, spread=400.0), window=3)
def test_candidate_score(case: Case, window: int) -> None:
    window = min(window, case.n)
    q, k = case.q(window), case.kv()
    k_mem = case.rng.normal(size=(case.score_heads, case.slots, case.d)).astype(case.dtype)
    got = run_operator("CandidateScore", {"q_window": q, "k": k, "k_mem": k_mem}, scale=case.scale)
    check(case, got, lambda: operators.candidate_score(q, k, k_mem, scale=case.scale))
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
    sink: int


@st.composite
def selecting(draw: st.DrawFn) -> Selecting:
    """Any call that the contract allows: candidates suffice, and the range holds the local window."""
    heads = draw(st.integers(1, 4))
    start, rows = draw(st.integers(0, 40)), draw(st.integers(1, 40))
    slots = draw(st.integers(0, start))
    local = draw(st.integers(1, rows))
    heavy = draw(st.integers(0, slots + rows - local))
    sink = draw(st.integers(0, heavy))
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
        score.astype(np.float32), memory.reshape(heads, slots), start, start + rows, local, heavy, sink
    )


@settings(max_examples=120, deadline=None)
@given(call=selecting())
def test_selection_is_exactly_the_references(tiny_bundle: Path, call: Selecting) -> None:
    c = call
    expected = operators.memory_select(
        c.score, c.memory, c.start, c.stop, local=c.local, heavy=c.heavy, sink=c.sink
    )
    out = np.full_like(expected, -1)
    provider_for(tiny_bundle, Case()).memory_select(c.score, c.memory, c.start, c.stop, c.local, c.sink, out)
    assert out.dtype == np.int32
    np.testing.assert_array_equal(out, expected)


@settings(max_examples=40, deadline=None)
@given(case=cases(), past=st.integers(0, 40), unused=st.integers(0, 5))
@example(case=Case(n=1), past=0, unused=3)
@example(case=Case(n=1, group=8, spread=400.0), past=40, unused=0)
def test_cached_attention(case: Case, past: int, unused: int) -> None:
    length = past + case.n
    q, k, v = case.q(), case.kv(length + unused), case.kv(length + unused)
    k[length:] = v[length:] = np.nan  # rows that are not valid yet may hold anything
    inputs = {"q": q, "k_cache": k, "v_cache": v, "length": np.array(length, np.int64)}
    got = run_operator("CachedAttention", inputs, scale=case.scale)
    check(case, got, lambda: (operators.cached_attention(q, k, v, length, scale=case.scale),))


# --- Through the provider ---------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(case=cases(), chunk_size=st.integers(1, 50), scored=st.booleans())
def test_the_provider_runs_intra_attention_chunk_by_chunk(
    tiny_bundle: Path, case: Case, chunk_size: int, scored: bool
) -> None:
    q, k, v = case.q(), case.kv(), case.kv()
    state = empty_state(case)
    colsum = np.full((case.n, case.score_heads), np.nan, np.float32) if scored else None
    provider_for(tiny_bundle, case).chunked_intra_attention(q, k, v, chunk_size, state, colsum)

    def reference() -> tuple[Array, ...]:
        everything = operators.chunked_intra_attention(
            q, k, v, chunk_size=chunk_size, scale=case.scale, score_heads=case.score_heads
        )
        return everything if scored else everything[:3]

    got = (state.o, state.m, state.l) if colsum is None else (state.o, state.m, state.l, colsum)
    check(case, got, reference)


@settings(max_examples=20, deadline=None)
@given(case=cases(), scored=st.booleans())
def test_the_provider_fuses_in_place(tiny_bundle: Path, case: Case, scored: bool) -> None:
    past = case.slots + 2
    q, k, v, memory = case.q(), case.kv(past + case.n), case.kv(past + case.n), case.memory(past)
    provider = provider_for(tiny_bundle, case)
    state = empty_state(case)
    provider.chunked_intra_attention(q, k[past:], v[past:], case.n, state, None)
    before = PartialSoftmax(state.o.copy(), state.m.copy(), state.l.copy())
    colsum = np.full((case.score_heads, case.slots), np.nan, np.float32) if scored else None
    provider.memory_fused_attention(q, k, v, memory, state, colsum)

    def reference() -> tuple[Array, ...]:
        both = operators.memory_fused_attention(
            q, k, v, memory, before.o, before.m, before.l, scale=case.scale
        )
        return both if scored else both[:1]

    check(case, (state.o,) if colsum is None else (state.o, colsum), reference)


@settings(max_examples=20, deadline=None)
@given(case=cases(least_slots=0), window=st.integers(1, 40))
@example(case=Case(n=12, slots=0), window=4)
def test_the_provider_scores_candidates_of_the_cache(tiny_bundle: Path, case: Case, window: int) -> None:
    past, window = case.slots + 2, min(window, case.n)
    q, k, memory = case.q(window), case.kv(past + case.n), case.memory(past)
    score_memory = np.full((case.score_heads, case.slots), np.nan, np.float32)
    score_chunk = np.full((case.n, case.score_heads), np.nan, np.float32)
    provider = provider_for(tiny_bundle, case)
    provider.candidate_score(q, k[past:], k, memory, score_memory, score_chunk)
    k_mem, _ = operators.memory_gather(k, k, memory)
    check(
        case,
        (score_memory, score_chunk),
        lambda: operators.candidate_score(q, k[past:], k_mem, scale=case.scale),
    )


@settings(max_examples=20, deadline=None)
@given(case=cases(), past=st.integers(0, 40), rows=st.integers(1, 40))
def test_the_provider_bounds_the_rows_it_takes_at_once(
    tiny_bundle: Path, case: Case, past: int, rows: int
) -> None:
    length = past + case.n
    q, k, v = case.q(), case.kv(length), case.kv(length)
    o = np.full_like(q, np.nan)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("h2o_runtime.attention.functions.SCORE_BYTES", 4 * case.query_heads * length * rows)
        provider_for(tiny_bundle, case).cached_attention(q, k, v, length, o)
    check(case, (o,), lambda: (operators.cached_attention(q, k, v, length, scale=case.scale),))


# --- Inside the attention graphs --------------------------------------------------------------------------


def model_config(case: Case) -> ModelConfig:
    return ModelConfig(
        family="llama",
        hidden_size=64,
        layers=2,
        query_heads=case.query_heads,
        kv_heads=case.kv_heads,
        head_size=case.d,
        intermediate_size=64,
        vocab_size=100,
        rms_norm_eps=1e-5,
        max_position_embeddings=512,
        rope=RopeConfig(10000.0),
        tied=False,
        qkv_bias=False,
        o_bias=False,
        mlp_bias=False,
        qk_norm=False,
    )


RULES = [(score, heads) for score in ("colsum", "window") for heads in ("kv", "query")]
Score = Literal["colsum", "window"]
Heads = Literal["kv", "query"]
S, L, H, W, SINK = 16, 4, 5, 3, 1


def builder(case: Case, score: Score, heads: Heads) -> AttentionGraphBuilder:
    prefill = PrefillConfig(
        chunk_size=S,
        batch_size=64,
        local=L,
        heavy=H,
        score=score,
        score_window=W,
        score_heads=heads,
        sink=SINK,
    )
    return AttentionGraphBuilder(model_config(case), prefill, case.dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("score", "heads"), RULES)
def test_attention_graphs_are_valid(dtype: str, score: Score, heads: Heads) -> None:
    graphs = builder(Case(group=4, dtype=dtype), score, heads).all()
    assert [graph.spec.name for graph in graphs] == ["phase1", "phase2", "decode"]
    for graph in graphs:
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
@pytest.mark.parametrize("n", [1, S - 1, S, 3 * S, 3 * S + 5])
def test_phase1_is_intra_attention(n: int, dtype: str) -> None:
    case = Case(n=n, group=2, dtype=dtype)
    q, k, v = case.q(), case.kv(), case.kv()
    for heads in ("kv", "query"):
        scored = case.kv_heads if heads == "kv" else case.query_heads
        graph = builder(case, "colsum", heads).phase1()  # type: ignore[arg-type]
        got = open_session(graph.model.SerializeToString(), 2).run(None, {"q": q, "k": k, "v": v})
        attributes: dict[str, Any] = {"chunk_size": S, "scale": case.scale, "score_heads": scored}
        check(case, tuple(got), lambda: operators.chunked_intra_attention(q, k, v, **attributes))  # noqa: B023


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("n", [1, 7])
def test_decode_is_cached_attention(n: int, dtype: str) -> None:
    case = Case(n=n, group=4, d=64, dtype=dtype)
    q, k, v = case.q(), case.kv(30), case.kv(30)
    graph = builder(case, "colsum", "kv").decode()
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
    model = builder(case, score, heads).phase2().model.SerializeToString()
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
        memory_next,
        operators.memory_select(score_next, memory, past, past + S, local=L, heavy=H, sink=SINK),
    )
