"""Times of the kernels, and of torch's flash attention, a copy and a matrix product in the same run.

    python -m bench.gpu_check.timings LIBRARY TABLE ROWS

One table per process. Every row is appended to the file ROWS as soon as it is measured.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from bench.gpu_check import int4, sparse, step_rows
from bench.gpu_check.latent import cached
from bench.gpu_check.layer import CHUNK, KV_HEADS, QUERY_HEADS, SLOTS, Layer
from bench.gpu_check.library import Library
from bench.gpu_check.report import append
from bench.gpu_check.steps import NOT_HERE
from torch.nn.attention import SDPBackend, sdpa_kernel

Row = dict[str, Any]
HEAD_SIZES = (64, 128)
LENGTHS = (4096, 8192, 16384, 32768)


def roomy() -> bool:
    """Whether the device has memory for sizes well beyond its caches; a small Jetson gets smaller sizes."""
    return bool(torch.cuda.mem_get_info()[1] > 32 << 30)


def milliseconds(work: Callable[[], Any], repeats: int = 20) -> float:
    """Median time of one replay of `work`, captured as a CUDA graph.

    A capture fails if the library allocates memory or waits for the device, so a time also shows that it does
    neither. torch's own allocations come from the graph's pool.
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
    times: list[float] = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def flash(q: Any, k: Any, v: Any, causal: bool = True) -> Any:
    """torch's FlashAttention-2; q [B, n, Hq, d], k and v [B, n, Hkv, d]."""
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return torch.nn.functional.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=causal, enable_gqa=True
        )


def ceilings(library: Library) -> Iterator[Row]:
    """This device's peak rates: bytes copied (read plus written) and float16 products."""
    source = torch.randn(1 << (29 if roomy() else 26))
    target = torch.empty_like(source)
    copy = 2 * source.numel() * 4 / milliseconds(lambda: target.copy_(source)) / 1e6
    a = torch.randn(8192, 8192, dtype=torch.float16)
    product = 2 * 8192**3 / milliseconds(lambda: a @ a) / 1e9
    yield {"copy_gb_s": copy, "matmul_tflop_s": product}


def long_flash(library: Library) -> Iterator[Row]:
    """FlashAttention-2 in its best case: long, and without a causal mask. Other rates are shares of this."""
    n = 16384 if roomy() else 4096
    for d in HEAD_SIZES:
        layer = Layer(library, n, d)
        time = milliseconds(lambda: flash(layer.q[None], layer.k[None], layer.v[None], causal=False))  # noqa: B023
        yield {"head_size": d, "n": n, "ms": time, "tflop_s": 4 * d * QUERY_HEADS * n * n / time / 1e9}


def phase1(library: Library) -> Iterator[Row]:
    """Intra-chunk attention of 32 chunks; torch gets the chunks as a batch. Column sums count as no FLOP."""
    n = 32 * CHUNK
    for d in HEAD_SIZES:
        layer = Layer(library, n, d)
        flop = 4 * d * QUERY_HEADS * n * (CHUNK + 1) / 2
        q, k, v = (x.view(-1, CHUNK, x.shape[1], d) for x in (layer.q, layer.k, layer.v))
        yield {
            "head_size": d,
            "torch_tflop_s": flop / milliseconds(lambda: flash(q, k, v)) / 1e9,  # noqa: B023
            "plain_tflop_s": flop / milliseconds(lambda: layer.phase1(scores=False)) / 1e9,  # noqa: B023
            "scored_tflop_s": flop / milliseconds(layer.phase1) / 1e9,
        }


def phase2(library: Library) -> Iterator[Row]:
    """The parts of one chunk's step, and gather."""
    for d in HEAD_SIZES:
        layer = Layer(library, 16 * CHUNK, d)
        layer.prefill()
        fused = milliseconds(lambda: layer.attend_memory(8, scores=False))  # noqa: B023
        times = {
            "fused_ms": fused,
            "fused_and_scores_ms": milliseconds(lambda: layer.attend_memory(8)),  # noqa: B023
            "step_ms": milliseconds(lambda: layer.step(8, replace=False)),  # noqa: B023
            "vote_ms": milliseconds(lambda: layer.vote(8)),  # noqa: B023
        }
        big = Layer(library, (128 if roomy() else 32) * CHUNK, d)
        slots = big.n // 4
        memory = torch.stack([torch.randperm(big.n)[:slots].sort().values for _ in range(KV_HEADS)]).int()
        out = [torch.empty(KV_HEADS, slots, d, dtype=torch.float16) for _ in range(2)]
        gather = milliseconds(
            lambda: big.run(library.memory_gather, big.shape, slots, big.kv, memory, *out)  # noqa: B023
        )
        yield {
            "head_size": d,
            "fused_tflop_s": 4 * d * QUERY_HEADS * CHUNK * SLOTS / fused / 1e9,
            "gather_gb_s": 2 * 2 * out[0].numel() * 2 / gather / 1e6,
            **times,
        }


def decode(library: Library) -> Iterator[Row]:
    """One token against a long cache. Several caches in turn, so that none is still in L2."""
    for d in HEAD_SIZES:
        for n in (8192, 32768):
            several = [Layer(library, n, d) for _ in range(8 if roomy() else 2)]

            def attend(several: list[Layer] = several) -> None:
                for layer in several:
                    layer.cached(1)

            def step(several: list[Layer] = several) -> None:
                for layer in several:
                    layer.decode_step()

            time = milliseconds(attend) / len(several)
            yield {
                "head_size": d,
                "length": n,
                "ms": time,
                "step_ms": milliseconds(step) / len(several),
                "bytes": 2 * n * KV_HEADS * d * 2,
            }


def rows_of_steps(library: Library) -> Iterator[Row]:
    """Steps of several rows, and attention sinks."""
    for d in HEAD_SIZES:
        yield from step_rows.rows(library, LENGTHS[1] if roomy() else LENGTHS[0], d, milliseconds)


def latents(library: Library) -> Iterator[Row]:
    """One token behind latents of 576 numbers, several caches in turn; and an expanded prompt."""
    n = 8192
    for heads in (16, 128):
        several = [cached(library, n, 1, heads, 1, 576, 512) for _ in range(16 if roomy() else 4)]

        def step(several: list[Callable[[], None]] = several) -> None:
            for work in several:
                work()

        time = milliseconds(step) / len(several)
        flop = 2 * (576 + 512) * heads * n
        yield {"query_heads": heads, "length": n, "ms": time, "gb_s": n * 576 * 2 / time / 1e6,
               "tflop_s": flop / time / 1e9}  # fmt: skip
    n = 4096
    time = milliseconds(cached(library, n, n, 16, 16, 192, 128))
    yield {"query_heads": 16, "n": n, "ms": time, "tflop_s": (192 + 128) * 16 * n * (n + 1) / time / 1e9}


def int4_products(library: Library) -> Iterator[Row]:
    """4-bit weights: one token, as many rows as cost hardly more, and a batch."""
    for n in (1, 16, 2048):
        for inputs, outputs in int4.SHAPES:
            yield int4.row(library, n, inputs, outputs, milliseconds)


def layers(library: Library) -> Iterator[Row]:
    """A whole layer's prefill attention, two-phase against full. Rates count what the pattern needs."""
    for n in LENGTHS:
        for d in HEAD_SIZES:
            layer = Layer(library, n, d)
            full = milliseconds(lambda: flash(layer.q[None], layer.k[None], layer.v[None]))  # noqa: B023
            sparse, window = milliseconds(layer.prefill), milliseconds(layer.prefill_window)
            tail = milliseconds(lambda: layer.cached(128))  # noqa: B023
            pairs = n * (CHUNK + 1) / 2 + (n - CHUNK) * SLOTS
            product = 2 * d * QUERY_HEADS * pairs / 1e9
            yield {
                "head_size": d, "n": n, "torch_ms": full, "h2o_ms": sparse, "window_ms": window, "tail_ms": tail,
                "speedup": full / sparse, "speedup_window": full / window,
                "speedup_with_tail": full / (sparse + tail),
                "h2o_tflop_s": 3 * product / sparse, "window_tflop_s": 2 * product / window,
            }  # fmt: skip


def sparse_calls(group: str) -> Callable[[Library], Iterator[Row]]:
    """One group of `sparse` as a table, after 32,768 rows."""

    def table(library: Library) -> Iterator[Row]:
        for d in HEAD_SIZES:
            layer = Layer(library, LENGTHS[-1], d)
            for name, (work, flop) in sparse.GROUPS[group](library, layer).items():
                time = milliseconds(work)
                yield {"head_size": d, "n": layer.n, "call": name, "ms": time, "tflop_s": flop / time / 1e9}

    return table


def every_kernel(library: Library) -> Iterator[Row]:
    """Launches each kernel once, for a profiler; measures nothing."""
    for d in HEAD_SIZES:
        layer = Layer(library, 16 * CHUNK, d)
        for work in (layer.prefill_window, lambda: layer.attend_memory(8), lambda: layer.cached(128),  # noqa: B023
                     layer.decode_step):  # fmt: skip
            work()
        for group in sparse.GROUPS.values():
            for work, _ in group(library, layer).values():
                work()
        step_rows.Step(library, CHUNK, d).run(0, step_rows.MOST_ROWS)
    cached(library, 8192, 1, 16, 1, 576, 512)()
    int4.times(library, 1, *int4.SHAPES[0])[0]()
    torch.cuda.synchronize()
    return iter(())


def repeatable(library: Library) -> Iterator[Row]:
    """Whether two prefills of the same layer give the same bytes."""
    layer = Layer(library, 8 * CHUNK, 64)
    results = []
    for _ in range(2):
        layer.prefill()
        results.append([x.clone() for x in (layer.o, layer.score, layer.memory)])
    yield {"same": all(torch.equal(a, b) for a, b in zip(*results, strict=True))}


TABLES: dict[str, Callable[[Library], Iterator[Row]]] = {
    "ceilings": ceilings,
    "flash": long_flash,
    "phase1": phase1,
    "phase2": phase2,
    "decode": decode,
    "step rows": rows_of_steps,
    **{group: sparse_calls(group) for group in sparse.GROUPS},
    "latent": latents,
    "int4": int4_products,
    "layer": layers,
    "repeatable": repeatable,
    "every kernel": every_kernel,
}


def main() -> int:
    library, table, rows = sys.argv[1:]
    if not torch.cuda.is_available():
        print("torch cannot use a GPU")
        return NOT_HERE
    torch.set_default_device("cuda")
    torch.manual_seed(0)
    for row in TABLES[table](Library(Path(library))):
        append(Path(rows), table, row)
        print(row, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
