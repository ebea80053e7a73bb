"""Times of the kernels beside torch's flash attention, a copy and a matrix product of the same run."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from layer import CHUNK, HEAVY, KV_HEADS, LOCAL, QUERY_HEADS, SLOTS, Layer
from library import Library
from torch.nn.attention import SDPBackend, sdpa_kernel

Row = dict[str, Any]
HEAD_SIZES = (64, 128)
LENGTHS = (4096, 8192, 16384, 32768)


def roomy() -> bool:
    """Whether the device has memory for sizes well past its caches; a small Jetson gets smaller ones."""
    return bool(torch.cuda.mem_get_info()[1] > 32 << 30)


def milliseconds(work: Callable[[], Any], repeats: int = 20) -> float:
    """Median time of one replay of `work`, captured as a CUDA graph.

    A capture fails on an allocation by the library or a wait for the device, so that a time is also
    evidence that there is none; torch's own allocations come from the graph's pool.
    """
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    for _ in range(3):
        graph.replay()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def flash(q: Any, k: Any, v: Any) -> Any:
    """torch's flash attention, causal; q [B, n, Hq, d], k and v [B, n, Hkv, d]."""
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return torch.nn.functional.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, enable_gqa=True
        )


def ceilings() -> Row:
    """What this device does at best: bytes copied (read plus written) and float16 products."""
    source = torch.randn(1 << (29 if roomy() else 26), device="cuda")
    target = torch.empty_like(source)
    copy = 2 * source.numel() * 4 / milliseconds(lambda: target.copy_(source)) / 1e6
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.float16)
    product = 2 * 8192**3 / milliseconds(lambda: a @ a) / 1e9
    return {"copy_gb_s": copy, "matmul_tflop_s": product}


def layers(library: Library, d: int) -> list[Row]:
    """A whole layer's prefill attention, two-phase against full."""
    rows = []
    for n in LENGTHS:
        layer = Layer(library, n, d)
        full = milliseconds(lambda: flash(layer.q[None], layer.k[None], layer.v[None]))  # noqa: B023
        sparse = milliseconds(layer.prefill)
        window = milliseconds(layer.prefill_window)
        tail = milliseconds(lambda: layer.cached(128))  # noqa: B023
        rows.append(
            {"head_size": d, "n": n, "flash_ms": full, "h2o_ms": sparse, "h2o_window_ms": window,
             "dense_tail_ms": tail, "speedup": full / sparse, "speedup_window": full / window,
             "speedup_with_tail": full / (sparse + tail)}
        )  # fmt: skip
    return rows


def phase1(library: Library, d: int, best: Row) -> Row:
    """Intra-chunk attention of 32 chunks; torch gets the chunks as a batch."""
    n = 32 * CHUNK
    layer = Layer(library, n, d)
    flop = 4 * d * QUERY_HEADS * n * (CHUNK + 1) / 2
    batch = [x.view(-1, CHUNK, x.shape[1], d) for x in (layer.q, layer.k, layer.v)]
    reference = flop / milliseconds(lambda: flash(*batch)) / 1e9
    plain = flop / milliseconds(lambda: layer.phase1(scores=False)) / 1e9
    scored = flop / milliseconds(layer.phase1) / 1e9
    return {
        "head_size": d, "flash_tflop_s": reference, "plain_tflop_s": plain, "scored_tflop_s": scored,
        "plain_of_flash": plain / reference, "scored_of_flash": scored / reference,
        "plain_of_matmul": plain / best["matmul_tflop_s"],
    }  # fmt: skip


def phase2(library: Library, d: int, best: Row) -> Row:
    """One chunk's step in its parts, and gather against a contiguous copy."""
    layer = Layer(library, 16 * CHUNK, d)
    layer.prefill()
    flop = 4 * d * QUERY_HEADS * CHUNK * SLOTS
    moved = (
        2 * (3 * CHUNK * QUERY_HEADS + 2 * SLOTS * KV_HEADS) * d
    )  # q, o in, o out; the memory's keys, values
    floor = max(flop / best["matmul_tflop_s"] / 1e9, moved / best["copy_gb_s"] / 1e6)
    plain = milliseconds(lambda: layer.attend_memory(8, scores=False))
    big = Layer(library, (128 if roomy() else 32) * CHUNK, d)
    slots = big.n // 4
    memory = torch.stack(
        [torch.randperm(big.n, device="cuda")[:slots].sort().values for _ in range(KV_HEADS)]
    ).int()
    out = [torch.empty(KV_HEADS, slots, d, device="cuda", dtype=torch.float16) for _ in range(2)]
    gather = milliseconds(lambda: big.run(library.memory_gather, big.shape, slots, big.kv, memory, *out))
    return {
        "head_size": d, "fused_ms": plain, "fused_and_scores_ms": milliseconds(lambda: layer.attend_memory(8)),
        "select_ms": milliseconds(lambda: layer.select(8)), "fused_of_limit": floor / plain,
        "vote_ms": milliseconds(lambda: layer.vote(8)), "gather_gb_s": 2 * 2 * out[0].numel() * 2 / gather / 1e6,
        "gather_of_copy": 2 * 2 * out[0].numel() * 2 / gather / 1e6 / best["copy_gb_s"],
    }  # fmt: skip


def decode(library: Library, d: int, best: Row) -> list[Row]:
    """One token against a long cache. Several caches in turn, so that none is still in the chip's own cache."""
    rows = []
    for n in (8192, 32768):
        several = [Layer(library, n, d) for _ in range(8 if roomy() else 2)]

        def step(several: list[Layer] = several) -> None:
            for layer in several:
                layer.cached(1)

        time = milliseconds(step) / len(several)
        rate = 2 * n * KV_HEADS * d * 2 / time / 1e6
        rows.append(
            {"head_size": d, "length": n, "ms": time, "gb_s": rate, "of_copy": rate / best["copy_gb_s"]}
        )  # fmt: skip
    return rows


def repeatable(library: Library) -> bool:
    """Two prefills of the same layer give the same bytes."""
    layer = Layer(library, 8 * CHUNK, 64)
    results = []
    for _ in range(2):
        layer.prefill()
        results.append([x.clone() for x in (layer.o, layer.score, layer.memory)])
    return all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def all_timings(library_path: Path) -> Row:
    torch.manual_seed(0)
    library = Library(library_path)
    best = ceilings()
    return {
        "setting": {
            "query_heads": QUERY_HEADS,
            "kv_heads": KV_HEADS,
            "chunk": CHUNK,
            "local": LOCAL,
            "heavy": HEAVY,
        },
        "ceilings": best,
        "phase1": [phase1(library, d, best) for d in HEAD_SIZES],
        "phase2": [phase2(library, d, best) for d in HEAD_SIZES],
        "layer": [row for d in HEAD_SIZES for row in layers(library, d)],
        "decode": [row for d in HEAD_SIZES for row in decode(library, d, best)],
        "repeatable": repeatable(library),
    }
