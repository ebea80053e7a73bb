"""The operators of h2o_plugins._cuda under the emulation, each against float64 NumPy."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.reference import operators

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
    memories: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.scale = float(np.float32(1 / np.sqrt(self.d)))
        self.half = self.dtype is np.float16
        self.Hs = self.Hq if self.by_query else self.Hkv
        self.random = np.random.default_rng(self.d)
        self.stream = self.cuda.Stream()
        self.kernels = self.cuda.Kernels(
            query_heads=self.Hq, kv_heads=self.Hkv, head_size=self.d, scale=self.scale, half=self.half
        )

    def rows(self, n: int, heads: int) -> Array:
        return self.random.standard_normal((n, heads, self.d)).astype(self.dtype)

    def memory(self, slots: int, capacity: int) -> Array:
        rows = [np.sort(self.random.permutation(capacity)[:slots]) for _ in range(self.Hs)]
        return np.stack(rows).astype(np.int32)

    def put(self, array: Array) -> int:
        self.memories.append(self.cuda.Memory(array.nbytes))
        self.stream.upload(np.ascontiguousarray(array), self.memories[-1].address)
        return int(self.memories[-1].address)

    def put_empty(self, *shape: int, dtype: Any = np.float32) -> int:
        return self.put(np.full(shape, np.nan if np.dtype(dtype).kind == "f" else -1, dtype))

    def get(self, address: int, *shape: int, dtype: Any = np.float32) -> Array:
        out = np.empty(shape, dtype)
        self.stream.download(address, out)
        self.stream.synchronize()
        return out

    def workspace(self, nbytes: int) -> dict[str, int]:
        return {"workspace": self.put_empty(max(nbytes // 4, 1)), "workspace_bytes": nbytes}


@pytest.fixture(
    params=[(4, 2, 64, np.float32), (4, 2, 64, np.float16), (3, 1, 32, np.float32), (2, 2, 32, np.float16)]
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
    model.kernels.chunked_intra_attention(
        model.stream, n=n, chunk_size=chunk, score_heads=model.Hs, **inputs, o=o, m=m, l=l, colsum=colsum
    )
    expected = operators.chunked_intra_attention(
        q, k, v, chunk_size=chunk, scale=model.scale, score_heads=model.Hs
    )
    assert_close(model.get(o, n, model.Hq, model.d, dtype=model.dtype), expected[0], half=model.half)
    assert_close(model.get(m, n, model.Hq), expected[1])
    assert_close(model.get(l, n, model.Hq), expected[2])
    assert_sums_close(model, model.get(colsum, n, model.Hs), expected[3])


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
    model.kernels.memory_fused_attention(
        model.stream,
        n=n,
        slots=slots,
        score_heads=model.Hs,
        q=model.put(q),
        k_cache=model.put(k),
        v_cache=model.put(v),
        capacity=capacity,
        memory=model.put(memory),
        o=o,
        m=m,
        l=l,
        colsum=colsum,
        **model.workspace(model.kernels.memory_attention_workspace(n, slots, model.Hs)),
    )
    *inter, sums = operators.memory_attention(q, *operators.memory_gather(k, v, memory), scale=model.scale)
    expected = operators.online_softmax_fusion(intra_o, intra_m, intra_l, *inter)
    assert_close(model.get(o, n, model.Hq, model.d, dtype=model.dtype), expected[0], half=model.half)
    assert_close(model.get(m, n, model.Hq), expected[1])
    assert_close(model.get(l, n, model.Hq), expected[2])
    assert_sums_close(model, model.get(colsum, model.Hs, slots), sums)


def test_candidate_score(model: Model) -> None:
    window, n, slots, capacity = 3, 10, 7, 20
    q, k, cache = model.rows(window, model.Hq), model.rows(n, model.Hkv), model.rows(capacity, model.Hkv)
    memory = model.memory(slots, capacity)
    of_memory, of_chunk = model.put_empty(model.Hs, slots), model.put_empty(n, model.Hs)
    model.kernels.candidate_score(
        model.stream,
        window=window,
        n=n,
        slots=slots,
        score_heads=model.Hs,
        q_window=model.put(q),
        k=model.put(k),
        k_cache=model.put(cache),
        capacity=len(cache),
        memory=model.put(memory),
        score_mem=of_memory,
        score_chunk=of_chunk,
        **model.workspace(model.kernels.candidate_score_workspace(window, n, slots, model.Hs)),
    )
    k_mem, _ = operators.memory_gather(cache, cache, memory)
    expected = operators.candidate_score(q, k, k_mem, scale=model.scale)
    assert_sums_close(model, model.get(of_memory, model.Hs, slots), expected[0])
    assert_sums_close(model, model.get(of_chunk, n, model.Hs), expected[1])


@pytest.mark.parametrize(("previous", "kind"), [(0, "stay"), (6, "stay"), (6, "grow"), (6, "change")])
def test_memory_step(model: Model, previous: int, kind: str) -> None:
    start, stop, local, heavy, sink = 10, 24, 4, 5, 2
    score = model.random.uniform(0, 1, (stop, model.Hs)).astype(np.float32)
    values = model.random.uniform(0, 1, (model.Hs, previous)).astype(np.float32)
    memory = model.memory(previous, start)
    names = ("memory_next", "last", "set")
    out = {name: model.put_empty(model.Hs, local + heavy, dtype=np.int32) for name in names}
    kept, scores = model.put(score), model.put_empty(model.Hs, local + heavy)
    model.cuda.memory_step(
        model.stream,
        score_heads=model.Hs,
        capacity=stop,
        previous_slots=previous,
        local=local,
        heavy=heavy,
        sink=sink,
        start=start,
        stop=stop,
        memory=model.put(memory) if previous else 0,
        values=0 if kind == "stay" else model.put(values),
        replace=kind == "change",
        score=kept,
        set_scores=scores,
        **out,
    )
    rows, heads = memory.T, np.arange(model.Hs)
    if kind != "stay":
        score[rows, heads] = values.T if kind == "change" else score[rows, heads] + values.T
    np.testing.assert_array_equal(model.get(kept, stop, model.Hs), score)
    expected = operators.memory_select(score, memory, start, stop, local=local, heavy=heavy, sink=sink)
    for address in out.values():
        got = model.get(address, model.Hs, local + heavy, dtype=np.int32)
        np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(model.get(scores, *expected.shape), score[expected.T, heads].T)


@pytest.mark.parametrize("replace", [False, True])
def test_score_update(model: Model, replace: bool) -> None:
    slots, capacity = 9, 25
    score = model.random.standard_normal((capacity, model.Hs)).astype(np.float32)
    values = model.random.standard_normal((model.Hs, slots)).astype(np.float32)
    memory = model.memory(slots, capacity)
    rows, heads = memory.T, np.arange(model.Hs)
    places = {"score_heads": model.Hs, "slots": slots, "memory": model.put(memory), "score": model.put(score)}
    model.cuda.score_update(model.stream, **places, values=model.put(values), replace=replace)
    score[rows, heads] = values.T if replace else score[rows, heads] + values.T
    np.testing.assert_array_equal(model.get(places["score"], capacity, model.Hs), score)


@pytest.mark.parametrize("n", [1, 5])
def test_cached_attention(emulated_cuda: ModuleType, shape: Shape, n: int) -> None:
    model, capacity, length = Model(emulated_cuda, *shape), 40, 17
    q, k, v = model.rows(n, model.Hq), model.rows(capacity, model.Hkv), model.rows(capacity, model.Hkv)
    o = model.put_empty(n, model.Hq, model.d, dtype=model.dtype)
    model.kernels.cached_attention(
        model.stream,
        n=n,
        capacity=capacity,
        q=model.put(q),
        k_cache=model.put(k),
        v_cache=model.put(v),
        length=model.put(np.array([length], np.int64)),
        o=o,
        **model.workspace(model.kernels.cached_attention_workspace(n, capacity)),
    )
    expected = operators.cached_attention(q, k, v, length, scale=model.scale)
    assert_close(model.get(o, n, model.Hq, model.d, dtype=model.dtype), expected, half=model.half)


def test_one_graph_is_a_decode_step_at_every_length(emulated_cuda: ModuleType, shape: Shape) -> None:
    """cache_append and cached_attention, with the new row and its position changing between launches."""
    model, capacity = Model(emulated_cuda, *shape), 20
    k_cache, v_cache = model.rows(capacity, model.Hkv), model.rows(capacity, model.Hkv)
    caches = {"k_cache": model.put(k_cache), "v_cache": model.put(v_cache), "capacity": capacity}
    q, o = model.put(model.rows(1, model.Hq)), model.put_empty(1, model.Hq, model.d, dtype=model.dtype)
    k, v = model.put(model.rows(1, model.Hkv)), model.put(model.rows(1, model.Hkv))
    position = model.put(np.zeros(2, np.int64))  # and the length after it
    workspace = model.workspace(model.kernels.cached_attention_workspace(1, capacity))
    model.stream.begin_capture()
    model.kernels.cache_append(model.stream, k=k, v=v, position=position, **caches)
    model.kernels.cached_attention(model.stream, n=1, q=q, length=position + 8, o=o, **caches, **workspace)
    graph = model.stream.end_capture()
    for at in (0, 7, 19):
        new_q, new_k, new_v = model.rows(1, model.Hq), model.rows(1, model.Hkv), model.rows(1, model.Hkv)
        for array, address in ((new_q, q), (new_k, k), (new_v, v)):
            model.stream.upload(array, address)
        model.stream.write_integers(position, [at, at + 1])
        graph.launch(model.stream)
        k_cache[at], v_cache[at] = new_k[0], new_v[0]
        expected = operators.cached_attention(new_q, k_cache, v_cache, at + 1, scale=model.scale)
        assert_close(model.get(o, *new_q.shape, dtype=model.dtype), expected, half=model.half)
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        np.testing.assert_array_equal(model.get(caches[name], *cache.shape, dtype=model.dtype), cache)


def test_what_the_kernels_refuse_is_a_value_error(emulated_cuda: ModuleType) -> None:
    sizes = {"query_heads": 4, "kv_heads": 2, "head_size": 64, "scale": 0.125, "half": False}
    for wrong in ({"query_heads": 3}, {"head_size": 584}, {"scale": 0.0}):
        with pytest.raises(ValueError, match="Kernels"):
            emulated_cuda.Kernels(**{**sizes, **wrong})
    kernels, stream, memory = (
        emulated_cuda.Kernels(**sizes),
        emulated_cuda.Stream(),
        emulated_cuda.Memory(4096),
    )
    at = memory.address
    with pytest.raises(ValueError, match="cache_append: an argument is out of range, or a null pointer"):
        kernels.cache_append(stream, k=0, v=at, position=at, k_cache=at, v_cache=at, capacity=8)
    with pytest.raises(ValueError, match=r"cache_append: no kernel for .* pages or what rows are stored as"):
        kernels.cache_append(
            stream, k=at, v=at, position=at, k_cache=at, v_cache=at, capacity=8, pages=at, page_rows=4
        )
    with pytest.raises(
        ValueError, match="cache_append: an argument is out of range"
    ):  # integers without scales
        kernels.cache_append(
            stream, k=at, v=at, position=at, k_cache=at, v_cache=at, capacity=8, item_bytes=1
        )
    with pytest.raises(ValueError, match="cached_attention: the workspace is too small"):
        kernels.cached_attention(
            stream,
            n=1,
            capacity=512,
            q=at,
            k_cache=at,
            v_cache=at,
            length=at,
            o=at,
            workspace=at,
            workspace_bytes=1,
        )
    places = {"score_heads": 0, "slots": 1, "memory": at, "values": at, "score": at}
    with pytest.raises(ValueError, match="score_update"):
        emulated_cuda.score_update(stream, **places, replace=False)


@pytest.mark.parametrize("listed", [0, 50])
def test_query_select(model: Model, listed: int) -> None:
    """Two chunks of two tiles, the last of which is partial; the second list has a past of its own."""
    n, tile, stride, share, reach, local, heavy, sink, cap = 42, 12, 4, 2, 2, 5, 20, 1, 110
    past = np.array([60, 60, 84, 84], np.int64)
    q, k = model.rows(n, model.Hq), model.rows(cap, model.Hkv)
    k[84:] = np.nan  # nobody looks there
    lists = [[np.sort(model.random.permutation(p)[:listed]) for _ in range(model.Hs)] for p in (60, 84)]
    candidates = np.array(lists, np.int32).reshape(2, model.Hs, listed)
    sizes = {"n": n, "tile": tile, "stride": stride, "slots": listed, "score_heads": model.Hs}
    out = model.put_empty(4, model.Hs, local + heavy, dtype=np.int32)
    model.kernels.query_select(
        model.stream,
        **sizes,
        share=share,
        reach=reach,
        local=local,
        heavy=heavy,
        sink=sink,
        q=model.put(q),
        k_cache=model.put(k),
        capacity=cap,
        candidates=model.put(candidates) if listed else 0,
        past=model.put(past),
        memory_next=out,
        **model.workspace(model.kernels.query_select_workspace(capacity=cap, **sizes)),
    )
    got = model.get(out, 4, model.Hs, local + heavy, dtype=np.int32)
    shared = {"scale": model.scale, "stride": stride, "reach": reach}
    expected = operators.query_select(
        q, k, candidates, past, tile=tile, share=share, local=local, heavy=heavy, sink=sink, **shared
    )
    for i, end in enumerate(past.tolist()):
        own = candidates[i // share]
        score = operators.query_score(q[i * tile : (i + 1) * tile], k, own, end, **shared)
        assert operators.same_but_for_near_ties(expected[i], got[i], score, stop=end, local=local, sink=sink)
