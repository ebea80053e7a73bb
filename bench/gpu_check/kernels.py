"""Times of the CUDA kernels, by the GPU's clock: python -m bench.gpu_check.kernels

Each call is a CUDA graph, replayed. A layer has 32 query heads, 8 key/value heads and float16; inputs are random.
Rates count the products or bytes that the pattern needs. Where torch sees the GPU, a copy and its FlashAttention-2
without a causal mask are measured in the same process: what the kernels' rates are compared with.
"""

from __future__ import annotations

import gc
import importlib.util
import statistics
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from bench.gpu_check.rows import Row, tell

from h2o_runtime.attention.provider import AttentionShape
from h2o_runtime.devices.cuda import CudaDevice
from h2o_runtime.kv import KV
from h2o_runtime.kv_entry import kv_entries
from h2o_runtime.operators import (
    BLOCK_SELECT,
    CACHED_ATTENTION,
    CHUNKED_INTRA_ATTENTION,
    MEMORY_FUSED_ATTENTION,
    PAGE_ATTENTION,
    PAGE_BOUNDS,
    PAGE_SELECT,
    QUERY_SELECT,
    STEP_ROWS_ATTENTION,
    TILED_MEMORY_ATTENTION,
)
from h2o_runtime.policies.decode.quest import Quest
from h2o_runtime.policies.prefill import Query
from h2o_runtime.policies.prefill.h2o.query_tiles import BLOCK
from h2o_runtime.providers.cuda import NativeCudaProvider
from h2o_runtime.schedule import Span

Work = Callable[[], None]
Calls = dict[str, tuple[Work, float]]  # and FLOP or bytes of them; 0: has no rate
QUERY_HEADS, KV_HEADS, HEAD_SIZES = 32, 8, (64, 128)
PROMPT, CHUNK, TAIL = 32768, 1024, 128  # tokens
CACHED = (8192, 32768)  # tokens before one generated token
ROWS = (1, 2, 4, 8, 16)  # of a step
REPEATS = 20
SLOTS = 512  # of a chunk's memory set
KINDS: dict[str, dict[str, Any]] = {"window": {"window": 1024}, "cap": {"softcap": 50.0}}
LATENT, LATENT_VALUE, LATENT_HEADS = 576, 512, (16, 128)
RULE = Query()


def milliseconds(device: CudaDevice, work: Work) -> float:
    """Median of replays of `work`, which is recorded in its second run: then it may not allocate or wait."""
    lane, event = device.lanes.dense, device.module.Event
    with device.lanes.one():
        work()
        device.synchronize()
        gc.disable()  # freeing memory while the lane records would end the recording
        lane.begin_capture()
        try:
            work()
        finally:
            graph = lane.end_capture()
            gc.enable()
    times: list[float] = []
    for _ in range(REPEATS + 3):
        begin, end = event(timing=True), event(timing=True)
        begin.record(lane)
        graph.launch(lane)
        end.record(lane)
        end.synchronize()
        times.append(end.milliseconds_since(begin))
    return statistics.median(times[3:])


class Layer:
    """Random rows of one layer on the GPU, and its operators."""

    def __init__(
        self,
        device: CudaDevice,
        n: int,
        head_size: int,
        heads: tuple[int, int] | None = None,
        **more: Any,
    ) -> None:
        """heads: of queries, and of keys and values; more: fields of AttentionShape."""
        heads = heads or (QUERY_HEADS, KV_HEADS)
        self.device, self.n, self.d, self.heads = device, n, head_size, heads
        self.provider = NativeCudaProvider(device)
        scale = head_size**-0.5
        self.shape = AttentionShape(*heads, head_size, scale, np.dtype(np.float16), **more)
        self.provider.activate(self.shape)
        self._draw = np.random.default_rng(0)
        self.kv = self.cache()
        self.pair = 2 * (self.shape.head_size + self.shape.value_size) * heads[0]  # FLOP of a query and a key

    def put(self, array: Any) -> Any:
        target = self.device.empty(array.shape, array.dtype)
        self.device.upload(np.ascontiguousarray(array), target)
        return target

    def random(self, *shape: int) -> Any:
        return self.put(self._draw.standard_normal(shape, np.float32).astype(np.float16))

    def cache(self) -> KV:
        """Rows of a sequence; one key/value head has its values in its keys."""
        k = self.random(self.n, self.heads[1], self.d)
        return KV(k, k if self.heads[1] == 1 else self.random(*k.shape), self.n)

    def queries(self, n: int) -> tuple[Any, Any]:
        """q and o of some rows."""
        o = self.device.empty((n, self.heads[0], self.shape.value_size), np.float16)
        return self.random(n, self.heads[0], self.d), o

    def state(self, o: Any, suffix: str = "") -> dict[str, Any]:
        """A softmax's state of the rows of o."""
        m, l = (self.device.zeros(o.shape[:2], np.float32) for _ in range(2))
        return {f"o{suffix}": o, f"m{suffix}": m, f"l{suffix}": l}

    def run(self, *arguments: Any, **named: Any) -> None:
        self.provider.run(*arguments, **named)

    def cached(self, n: int, caches: int = 1) -> tuple[Work, float]:
        """The last n rows attend to all rows, or to the window. Several caches take turns: the GPU caches none."""
        (q, o), each = self.queries(n), [self.kv, *(self.cache() for _ in range(caches - 1))]
        seen = self.shape.window or self.n - (n - 1) / 2

        def work() -> None:
            for kv in each:
                self.run(CACHED_ATTENTION, kv, q=q, o=o)

        return work, caches * self.pair * n * seen


def prefill(layer: Layer) -> Calls:
    """Phase 1 of a prompt, the parts of Phase 2, and attention to everything."""
    n, pair = layer.n, layer.pair
    q, o = layer.queries(n)
    prompt = {"q": q, "k": layer.kv.k, "v": layer.kv.v, "chunk_size": CHUNK, **layer.state(o)}
    scores = layer.device.zeros((n, KV_HEADS), np.float32)
    memory = layer.put(np.tile(np.arange(0, 2 * SLOTS, 2, dtype=np.int32), (KV_HEADS, 1)))
    chunk = {"q": q[n - CHUNK :], "memory": memory, **layer.state(o[n - CHUNK :], "_intra")}
    sums = layer.device.zeros(memory.shape, np.float32)
    intra, fused = pair * n * (CHUNK + 1) / 2, pair * CHUNK * SLOTS
    return {
        "phase 1": (lambda: layer.run(CHUNKED_INTRA_ATTENTION, **prompt), intra),
        "phase 1, scores": (lambda: layer.run(CHUNKED_INTRA_ATTENTION, **prompt, colsum=scores), intra),
        "chunk, scores": (lambda: layer.run(MEMORY_FUSED_ATTENTION, layer.kv, **chunk, colsum=sums), fused),
        **choosing(layer, q, o),
        "full": layer.cached(RULE.batch_size),
        "tail": layer.cached(TAIL),
    }


def choosing(layer: Layer, q: Any, o: Any) -> Calls:
    """The last logical batch under the default rule, in the first half of the layers: candidates, memory sets,
    attention to these."""
    first, tile = layer.n - RULE.batch_size, RULE.tile_rows
    (group,) = RULE.groups(0, 0, Span(first, layer.n), KV_HEADS)
    begins = np.array([one.start for one in group.tiles], np.int64)
    past = layer.put(begins // RULE.chunk_size * RULE.chunk_size)
    candidates = layer.device.zeros((len(begins), KV_HEADS, group.narrowed), np.int32)
    sets = layer.device.zeros((len(begins), group.sets.heads, group.sets.memory), np.int32)
    tiles, stride = {"q": q[first:], "tile": tile}, RULE.stride_in(0, 1)
    votes = {"local": RULE.local, "stride": stride, "past": past, "candidates": candidates, **tiles}
    chosen = {"reach": stride // 2, "first": layer.put(begins), "memory_next": sets}
    attention = {"memory": sets, **tiles, **layer.state(o[first:], "_intra")}
    flop = layer.pair * len(group.rows) * group.sets.memory
    return {
        "candidates": (lambda: layer.run(BLOCK_SELECT, layer.kv, **votes, block_size=BLOCK), 0),
        "memory sets": (lambda: layer.run(QUERY_SELECT, layer.kv, **votes, **chosen), 0),
        "tiles": (lambda: layer.run(TILED_MEMORY_ATTENTION, layer.kv, **attention), flop),
    }


def decode(layer: Layer) -> Calls:
    """Steps of some rows, each in a cache of its own, and their bytes."""
    caches = [layer.kv, *(layer.cache() for _ in range(max(ROWS) - 1))]
    entries = layer.put(kv_entries(caches).view(np.int64))
    lengths = layer.put(np.full(len(caches), layer.n, np.int64))
    (q, o), new = layer.queries(len(caches)), layer.random(len(caches), KV_HEADS, layer.d)

    def step(rows: int) -> Work:
        given = {"q": q[:rows], "o": o[:rows], "k": new[:rows], "v": new[:rows], "lengths": lengths[:rows]}
        return lambda: layer.run(STEP_ROWS_ATTENTION, caches[0], **given, caches=entries[:rows])

    return {f"step of {rows} rows": (step(rows), rows * 2 * layer.kv.k.nbytes) for rows in ROWS}


def pages(layer: Layer) -> Calls:
    """One token under quest: the choice of pages, and attention to them."""
    quest, (q, o) = Quest(), layer.queries(1)
    count = layer.n // quest.page
    k_min, k_max = (layer.device.zeros((count, KV_HEADS, layer.d), np.float32) for _ in range(2))
    bounds, size = {"k_min": k_min, "k_max": k_max}, {"page_size": quest.page}
    layer.run(PAGE_BOUNDS, layer.kv, **bounds, start=0, **size)
    listed = {"page_list": layer.device.zeros((KV_HEADS, quest.budget // quest.page), np.int32), **size}
    return {
        "pages": (lambda: layer.run(PAGE_SELECT, layer.kv, q=q, **bounds, **listed), 0),
        "attention to pages": (lambda: layer.run(PAGE_ATTENTION, layer.kv, q=q, o=o, **listed), 0),
    }


def times(device: CudaDevice) -> Iterator[Row]:
    """One row for each call."""

    def timed(layer: Layer, calls: Calls, rate: str = "tflop_s") -> Iterator[Row]:
        for name, (work, amount) in calls.items():
            ms = milliseconds(device, work)
            found = {rate: amount / ms / (1e9 if rate == "tflop_s" else 1e6)} if amount else {}
            yield {"call": name, "head_size": layer.d, "n": layer.n, "ms": ms, **found}

    for d in HEAD_SIZES:
        layer = Layer(device, PROMPT, d)
        yield from timed(layer, prefill(layer))
        for name, kind in KINDS.items():
            layer = Layer(device, PROMPT, d, **kind)
            yield from timed(layer, {f"{name}, {n} rows": layer.cached(n) for n in (RULE.batch_size, 1)})
        for n in CACHED:
            layer = Layer(device, n, d)
            yield from timed(layer, decode(layer), "gb_s")
            yield from timed(layer, pages(layer))
    for heads in LATENT_HEADS:
        layer = Layer(device, CACHED[0], LATENT, (heads, 1), value_size=LATENT_VALUE)
        calls = {f"{max(ROWS)} latent caches, {heads} heads": layer.cached(1, max(ROWS))}
        yield from timed(layer, calls)
    yield from ceilings()


def ceilings() -> Iterator[Row]:
    """What torch reaches on this GPU; nothing where it does not see one."""
    if importlib.util.find_spec("torch") is None:
        return
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if not torch.cuda.is_available():
        return

    def median(work: Callable[[], Any]) -> float:
        """Milliseconds."""
        taken: list[float] = []
        for _ in range(REPEATS + 3):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            work()
            end.record()
            end.synchronize()
            taken.append(begin.elapsed_time(end))
        return statistics.median(taken[3:])

    attention, n = torch.nn.functional.scaled_dot_product_attention, PROMPT // 2
    with torch.device("cuda"), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        source = torch.randn(1 << 28)
        target = torch.empty_like(source)
        yield {"call": "copy", "gb_s": 2 * source.nbytes / median(lambda: target.copy_(source)) / 1e6}
        for d in HEAD_SIZES:
            q, k = (torch.randn(1, heads, n, d, dtype=torch.float16) for heads in (QUERY_HEADS, KV_HEADS))
            ms = median(lambda: attention(q, k, k, enable_gqa=True))  # noqa: B023
            rate = 4 * d * QUERY_HEADS * n * n / ms / 1e9
            yield {"call": "FlashAttention-2", "head_size": d, "n": n, "ms": ms, "tflop_s": rate}


if __name__ == "__main__":
    sys.exit(tell(lambda: times(CudaDevice())))
