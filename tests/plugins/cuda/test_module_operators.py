"""The operators of h2o_plugins._cuda under the emulation, each against float64 NumPy."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.reference import operators

from h2o_runtime.limits import MOST_STEP_ROWS
from h2o_runtime.operator_spec import Operator
from h2o_runtime.operators import (
    CACHE_APPEND,
    CACHED_ATTENTION,
    CACHED_CANDIDATE_SCORE,
    CHUNKED_INTRA_ATTENTION,
    MEMORY_FUSED_ATTENTION,
    MEMORY_STEP,
    QUERY_SELECT,
    SCATTER_SCORES,
)

Array = NDArray[Any]
Shape = tuple[int, int, int, Any]  # query heads, key/value heads, head size, dtype


@dataclass
class Model:
    """One model shape with its kernels, random inputs, and arrays on the device."""

    cuda: ModuleType
    Hq: int
    Hkv: int
    d: int
    dtype: Any
    by_query: bool = False
    window: int = 0
    softcap: float = 0.0
    value_size: int = 0
    memories: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.scale = float(np.float32(1 / np.sqrt(self.d)))
        self.half = self.dtype is np.float16
        self.Hs = self.Hq if self.by_query else self.Hkv
        self.random = np.random.default_rng(self.d)
        self.stream = self.cuda.Stream()
        counters = self.put(np.zeros((MOST_STEP_ROWS, self.Hq), np.uint32))
        integers = self.put_empty(8, dtype=np.int64)
        self.kernels = self.cuda.Kernels(
            query_heads=self.Hq,
            kv_heads=self.Hkv,
            head_size=self.d,
            scale=self.scale,
            half=self.half,
            window=self.window,
            softcap=self.softcap,
            value_size=self.value_size,
            counters=counters.address,
            integers=integers.address,
        )

    def run(self, operator: Operator, kv: Any = None, **arguments: Any) -> None:
        self.kernels.run(self.stream, operator.name, kv, arguments, self._reserve)

    def cache(self, k: Any, v: Any, length: Any) -> Any:
        return self.cuda.KV(k, v, length)

    def _reserve(self, nbytes: int) -> tuple[int, int]:
        return self.put_empty(max(nbytes // 4, 1)).address, nbytes

    def rows(self, n: int, heads: int) -> Array:
        return self.random.standard_normal((n, heads, self.d)).astype(self.dtype)

    def memory(self, slots: int, capacity: int) -> Array:
        rows = [np.sort(self.random.permutation(capacity)[:slots]) for _ in range(self.Hs)]
        return np.stack(rows).astype(np.int32)

    def put(self, array: Array) -> Any:
        memory = self.cuda.Memory(max(array.nbytes, 1))
        if array.size:
            self.stream.upload(np.ascontiguousarray(array), memory.address)
        self.memories.append(memory)
        return self.cuda.Array(memory.address, array.shape, array.dtype, memory)

    def put_empty(self, *shape: int, dtype: Any = np.float32) -> Any:
        return self.put(np.full(shape, np.nan if np.dtype(dtype).kind == "f" else -1, dtype))

    def get(self, array: Any) -> Array:
        out = np.empty(array.shape, array.dtype)
        self.stream.download(array.address, out)
        self.stream.synchronize()
        return out


@pytest.fixture(
    params=[
        (4, 2, 64, np.float32),
        (4, 2, 64, np.float16),
        (3, 1, 32, np.float32),
        (2, 2, 32, np.float16),
        (4, 2, 256, np.float16),  # without tiles
        (2, 1, 160, np.float32),
        (2, 2, 192, np.float16),
    ]
)
def shape(request: pytest.FixtureRequest) -> Shape:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(params=["kv", "query"])
def model(emulated_cuda: ModuleType, shape: Shape, request: pytest.FixtureRequest) -> Model:
    return Model(emulated_cuda, *shape, request.param == "query")


def assert_close(actual: Array, expected: Array, *, half: bool = False) -> None:
    """Design section 8; float16 may be off by its own rounding of the result, twice."""
    assert np.isfinite(actual).all()
    error, largest = np.abs(actual.astype(np.float64) - expected), np.abs(expected).max()
    if half:
        assert error.max() <= 2 * np.finfo(np.float16).eps * largest
        return
    assert error.max() <= 2e-5 * largest
    assert np.linalg.norm(error) <= 1e-6 * np.linalg.norm(expected)


def assert_sums_close(model: Model, actual: Array, expected: Array) -> None:
    """Column sums are float32; those of float16 inputs have float16 products in them."""
    if model.half:
        np.testing.assert_allclose(actual, expected, rtol=2e-3, atol=2e-3)
    else:
        assert_close(actual, expected)


def test_chunked_intra_attention(model: Model) -> None:
    n, chunk = 21, 8
    q, k, v = model.rows(n, model.Hq), model.rows(n, model.Hkv), model.rows(n, model.Hkv)
    o, m, l = (
        model.put_empty(n, model.Hq, model.d, dtype=model.dtype),
        model.put_empty(n, model.Hq),
        model.put_empty(n, model.Hq),
    )
    colsum = model.put_empty(n, model.Hs)
    inputs = {"q": model.put(q), "k": model.put(k), "v": model.put(v)}
    model.run(CHUNKED_INTRA_ATTENTION, chunk_size=chunk, **inputs, o=o, m=m, l=l, colsum=colsum)
    expected = operators.chunked_intra_attention(
        q, k, v, chunk_size=chunk, scale=model.scale, score_heads=model.Hs
    )
    assert_close(model.get(o), expected[0], half=model.half)
    assert_close(model.get(m), expected[1])
    assert_close(model.get(l), expected[2])
    assert_sums_close(model, model.get(colsum), expected[3])


def test_memory_fused_attention(model: Model) -> None:
    n, slots, capacity = 9, 11, 30
    q, k, v = model.rows(n, model.Hq), model.rows(capacity, model.Hkv), model.rows(capacity, model.Hkv)
    memory, intra_o = model.memory(slots, capacity), model.rows(n, model.Hq)
    intra_m = model.random.standard_normal((n, model.Hq)).astype(np.float32)
    intra_l = model.random.uniform(1, 9, (n, model.Hq)).astype(np.float32)
    o, m, l, colsum = (
        model.put(intra_o),
        model.put(intra_m),
        model.put(intra_l),
        model.put_empty(model.Hs, slots),
    )
    model.run(
        MEMORY_FUSED_ATTENTION,
        model.cache(model.put(k), model.put(v), capacity),
        q=model.put(q),
        memory=model.put(memory),
        o_intra=o,
        m_intra=m,
        l_intra=l,
        colsum=colsum,
    )
    *inter, sums = operators.memory_attention(q, *operators.memory_gather(k, v, memory), scale=model.scale)
    expected = operators.online_softmax_fusion(intra_o, intra_m, intra_l, *inter)
    assert_close(model.get(o), expected[0], half=model.half)
    assert_close(model.get(m), expected[1])
    assert_close(model.get(l), expected[2])
    assert_sums_close(model, model.get(colsum), sums)


def test_candidate_score(model: Model) -> None:
    window, n, slots, capacity = 3, 10, 7, 20
    q, k, cache = model.rows(window, model.Hq), model.rows(n, model.Hkv), model.rows(capacity, model.Hkv)
    memory = model.memory(slots, capacity)
    of_memory, of_chunk = model.put_empty(model.Hs, slots), model.put_empty(n, model.Hs)
    keys = model.put(cache)
    model.run(
        CACHED_CANDIDATE_SCORE,
        model.cache(keys, keys, capacity),
        q_window=model.put(q),
        k=model.put(k),
        memory=model.put(memory),
        score_mem=of_memory,
        score_chunk=of_chunk,
    )
    k_mem, _ = operators.memory_gather(cache, cache, memory)
    expected = operators.candidate_score(q, k, k_mem, scale=model.scale)
    assert_sums_close(model, model.get(of_memory), expected[0])
    assert_sums_close(model, model.get(of_chunk), expected[1])


@pytest.mark.parametrize(("previous", "kind"), [(0, "stay"), (6, "stay"), (6, "grow"), (6, "change")])
def test_memory_step(model: Model, previous: int, kind: str) -> None:
    start, stop, local, heavy = 10, 24, 4, 5
    score = model.random.uniform(0, 1, (stop, model.Hs)).astype(np.float32)
    values = model.random.uniform(0, 1, (model.Hs, previous)).astype(np.float32)
    memory = model.memory(previous, start)
    names = ("memory_next", "last", "boundary")
    out = {name: model.put_empty(model.Hs, local + heavy, dtype=np.int32) for name in names}
    kept, scores = model.put(score), model.put_empty(model.Hs, local + heavy)
    model.run(
        MEMORY_STEP,
        score=kept,
        memory=model.put(memory),
        values=None if kind == "stay" else model.put(values),
        add=kind != "change",
        start=start,
        stop=stop,
        local=local,
        **out,
        scores=scores,
    )
    rows, heads = memory.T, np.arange(model.Hs)
    if kind != "stay":
        score[rows, heads] = values.T if kind == "change" else score[rows, heads] + values.T
    np.testing.assert_array_equal(model.get(kept), score)
    expected = operators.memory_select(score, memory, start, stop, local=local, heavy=heavy)
    for array in out.values():
        np.testing.assert_array_equal(model.get(array), expected)
    np.testing.assert_array_equal(model.get(scores), score[expected.T, heads].T)


@pytest.mark.parametrize("replace", [False, True])
def test_scatter_scores(model: Model, replace: bool) -> None:
    slots, capacity = 9, 25
    score = model.random.standard_normal((capacity, model.Hs)).astype(np.float32)
    values = model.random.standard_normal((model.Hs, slots)).astype(np.float32)
    memory = model.memory(slots, capacity)
    rows, heads = memory.T, np.arange(model.Hs)
    places = {"memory": model.put(memory), "score": model.put(score)}
    model.run(SCATTER_SCORES, **places, values=model.put(values), add=not replace)
    score[rows, heads] = values.T if replace else score[rows, heads] + values.T
    np.testing.assert_array_equal(model.get(places["score"]), score)


@pytest.mark.parametrize("n", [1, 5])
def test_cached_attention(emulated_cuda: ModuleType, shape: Shape, n: int) -> None:
    model, capacity, length = Model(emulated_cuda, *shape), 40, 17
    q, k, v = model.rows(n, model.Hq), model.rows(capacity, model.Hkv), model.rows(capacity, model.Hkv)
    o = model.put_empty(n, model.Hq, model.d, dtype=model.dtype)
    kv = model.cache(model.put(k), model.put(v), model.put(np.array([length], np.int64)))
    model.run(CACHED_ATTENTION, kv, q=model.put(q), o=o)
    expected = operators.cached_attention(q, k, v, length, scale=model.scale)
    assert_close(model.get(o), expected, half=model.half)


def test_one_graph_is_a_decode_step_at_every_length(emulated_cuda: ModuleType, shape: Shape) -> None:
    """cache_append and cached_attention, with the new row and its position changing between launches."""
    model, capacity = Model(emulated_cuda, *shape), 20
    k_cache, v_cache = model.rows(capacity, model.Hkv), model.rows(capacity, model.Hkv)
    caches = {"k_cache": model.put(k_cache), "v_cache": model.put(v_cache)}
    q, o = model.put(model.rows(1, model.Hq)), model.put_empty(1, model.Hq, model.d, dtype=model.dtype)
    k, v = model.put(model.rows(1, model.Hkv)), model.put(model.rows(1, model.Hkv))
    position = model.put(np.zeros(2, np.int64))  # and the length after it
    kv = model.cache(*caches.values(), position[1:])
    room = model.put_empty(1 << 18)
    held = room.address, room.nbytes
    model.stream.begin_capture()
    for operator, arguments in (
        (CACHE_APPEND, {"k": k, "v": v, "first": 0, "at": position[:1]}),
        (CACHED_ATTENTION, {"q": q, "o": o}),
    ):
        model.kernels.run(model.stream, operator.name, kv, arguments, lambda nbytes: held)
    graph = model.stream.end_capture()
    for at in (0, 7, 19):
        new_q, new_k, new_v = model.rows(1, model.Hq), model.rows(1, model.Hkv), model.rows(1, model.Hkv)
        for array, there in ((new_q, q), (new_k, k), (new_v, v)):
            model.stream.upload(array, there.address)
        model.stream.write_integers(position.address, [at, at + 1])
        graph.launch(model.stream)
        k_cache[at], v_cache[at] = new_k[0], new_v[0]
        expected = operators.cached_attention(new_q, k_cache, v_cache, at + 1, scale=model.scale)
        assert_close(model.get(o), expected, half=model.half)
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        np.testing.assert_array_equal(model.get(caches[name]), cache)


def test_what_the_kernels_refuse_is_a_value_error(emulated_cuda: ModuleType) -> None:
    sizes = {"query_heads": 4, "kv_heads": 2, "head_size": 64, "scale": 0.125, "half": False}
    for wrong in ({"query_heads": 3}, {"head_size": 584}, {"scale": 0.0}):
        with pytest.raises(ValueError, match="Kernels"):
            emulated_cuda.Kernels(**{**sizes, **wrong}, counters=0, integers=0)
    model = Model(emulated_cuda, 4, 2, 64, np.float32)
    k, v, at = model.put_empty(8, 2, 64), model.put_empty(8, 2, 64), model.put(np.zeros(1, np.int64))
    new, nowhere = model.put_empty(1, 2, 64), model.cuda.Array(0, (1, 2, 64), np.dtype(np.float32), None)
    with pytest.raises(ValueError, match="cache_append: an argument is out of range, or a null pointer"):
        model.run(CACHE_APPEND, model.cache(k, v, 8), k=nowhere, v=new, first=0, at=at)
    pages = emulated_cuda.KV(k, v, 8, model.put(np.zeros(2, np.int32)), 4)
    with pytest.raises(ValueError, match=r"cache_append: no kernel for .* pages or what rows are stored as"):
        model.run(CACHE_APPEND, pages, k=new, v=new, first=0, at=at)
    integers = model.put_empty(8, 2, 64, dtype=np.int8)
    with pytest.raises(ValueError, match="a cache of integers has scales"):
        model.cache(integers, integers, 8)
    with pytest.raises(ValueError, match=r"cache_append: k must have shape \(n = 1, Hkv = 2, d = 64\)"):
        model.run(CACHE_APPEND, model.cache(k, v, 8), k=new.reshape(1, 1, 128), v=new, first=0, at=at)
    q, long = model.put_empty(1, 4, 64), model.put_empty(512, 2, 64)
    call = {"q": q, "o": model.put_empty(1, 4, 64)}
    with pytest.raises(ValueError, match="cached_attention: the workspace is too small"):
        model.kernels.run(
            model.stream, "CachedAttention", model.cache(long, long, 9), call, lambda nbytes: (q.address, 1)
        )
    with pytest.raises(ValueError, match="scatter_scores: values is missing"):
        model.run(
            SCATTER_SCORES, memory=model.put(np.zeros((2, 4), np.int32)), score=model.put_empty(8, 2), add=0
        )
    with pytest.raises(ValueError, match="cached_attention has no argument colour"):
        model.run(CACHED_ATTENTION, model.cache(k, v, 8), **call, colour=1)


@pytest.mark.parametrize("listed", [0, 50])
def test_query_select(model: Model, listed: int) -> None:
    """Two chunks of two tiles, the last of which is partial."""
    n, tile, stride, reach, local, heavy, cap = 42, 12, 4, 2, 5, 20, 110
    past = np.array([60, 60, 84, 84], np.int64)
    first = 60 + tile * np.arange(4)
    q, k = model.rows(n, model.Hq), model.rows(cap, model.Hkv)
    k[60 + n :] = np.nan  # nobody looks there
    lists = [[np.sort(model.random.permutation(p)[:listed]) for _ in range(model.Hs)] for p in past]
    candidates = np.array(lists, np.int32).reshape(4, model.Hs, listed)
    out = model.put_empty(4, model.Hs, local + heavy, dtype=np.int32)
    keys = model.put(k)
    model.run(
        QUERY_SELECT,
        model.cache(keys, keys, cap),
        q=model.put(q),
        candidates=model.put(candidates),
        past=model.put(past),
        first=model.put(first),
        tile=tile,
        stride=stride,
        reach=reach,
        local=local,
        memory_next=out,
    )
    got = model.get(out)
    shared = {"scale": model.scale, "stride": stride, "reach": reach}
    expected = operators.query_select(
        q, k, candidates, past, first, tile=tile, local=local, heavy=heavy, score_heads=model.Hs, **shared
    )
    for i, end in enumerate(past.tolist()):
        rows, begin = q[i * tile : (i + 1) * tile], int(first[i])
        score = operators.query_score(rows, k, candidates[i], end, begin, **shared)
        assert operators.same_but_for_near_ties(expected[i], got[i], score, stop=end, local=local)
