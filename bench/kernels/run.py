"""How near the CPU kernels come to what the machine can do.

    python -m bench.kernels.run --threads 2 --out bench/kernels/results/NAME.json

Everything is interleaved: a round measures the machine's rates and every kernel once, so that a shared machine's
ups and downs meet all of them. Shares are medians over the rounds. Inputs are random; speed does not depend on
them. `h2o-bench attention` measures one layer beside its peers.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from h2o_cli.bench.machine import describe, measure_rates
from h2o_plugins._cpu import KV, Kernels
from h2o_runtime import Query
from h2o_runtime.policies.prefill.h2o.query_tiles import BLOCK
from h2o_runtime.schedule import Span

Array = np.ndarray[Any, Any]
HQ, HKV, D = 32, 8, 64
SCALE = 1 / np.sqrt(D)
CHUNK, SLOTS = 1024, 512
WINDOW = 64
PRODUCT = 2048  # rows and columns of the matrices of the machine's rate
DECODE_LENGTH = 65_536  # two caches of 128 MiB: larger than the caches of the processor


def inputs(n: int) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((n, heads, D), dtype=np.float32) for heads in (HQ, HKV, HKV))
    return q, k, v


class QueryPhase2:
    """Phase 2 of the last chunk of a prompt under the default rule, in the first half of the layers: candidates of
    its tiles, their sets, attention to them."""

    def __init__(self, kernels: Kernels, q: Array, k: Array, v: Array) -> None:
        self.kernels, self.q, self.kv = kernels, q[-CHUNK:], KV(k, v, len(k))
        self.rule, self.past = Query(chunk_size=CHUNK), len(k) - CHUNK
        (self.group,) = self.rule.groups(0, 0, Span(self.past, len(k)), HKV)
        self.stride = self.rule.stride_in(0, 1)
        tiles = len(self.group.tiles)
        self.candidates = np.empty((tiles, HKV, self.group.narrowed), np.int32)
        self.sets = np.empty((tiles, HKV, self.group.sets.memory), np.int32)
        self.past_of = np.full(tiles, self.past, np.int64)
        self.first_of = np.array([tile.start for tile in self.group.tiles])
        self.o = np.zeros_like(self.q)
        self.m, self.l = np.zeros((CHUNK, HQ), np.float32), np.ones((CHUNK, HQ), np.float32)

    def flops(self) -> float:
        """Of the dot products: two for a key that is attended to, one for a key that is voted for."""
        narrowed, memory = self.group.narrowed, self.group.sets.memory
        blocks = self.past // BLOCK if narrowed else 0  # by means and by variances
        votes = CHUNK // self.stride * (2 * blocks + (narrowed or self.past))
        return 2 * D * HQ * (votes + 2 * CHUNK * memory)

    def __call__(self) -> None:
        tiles = {"q": self.q, "past": self.past_of, "tile": self.rule.tile_rows, "local": self.rule.local}
        votes = {**tiles, "stride": self.stride, "candidates": self.candidates}
        if self.group.narrowed:
            self.kernels.run("BlockSelect", self.kv, {**votes, "block_size": BLOCK})
        choose = {**votes, "reach": self.stride // 2, "first": self.first_of, "memory_next": self.sets}
        self.kernels.run("QuerySelect", self.kv, choose)
        state = {"o_intra": self.o, "m_intra": self.m, "l_intra": self.l}
        call = {"q": self.q, "memory": self.sets, "tile": self.rule.tile_rows, **state}
        self.kernels.run("TiledMemoryAttention", self.kv, call)


def machine_rates(threads: int) -> dict[str, float]:
    """GFLOP/s and GB/s of one moment: products, those of bfloat16 where the kernels have them, and reading."""
    measured = measure_rates(threads, repetitions=3)
    seconds = {"matmul": _torch_product(torch.float32)}
    if Kernels.multiplies("bfloat16"):
        seconds["matmul_bfloat16"] = _torch_product(torch.bfloat16)
    rates = {name: 2 * PRODUCT**3 / each / 1e9 for name, each in seconds.items()}
    best = max(measured["flops"] / 1e9, rates["matmul"])
    return {**rates, "matmul": best, "read": measured["bandwidth"] / 1e9}


def _torch_product(dtype: torch.dtype) -> float:
    """Seconds."""
    a, b, c = (torch.ones(PRODUCT, PRODUCT, dtype=dtype) for _ in range(3))
    return best_of(partial(torch.mm, a, b, out=c))


def clock(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def best_of(call: Callable[[], Any]) -> float:
    return min(clock(call) for _ in range(3))


def blocked_calls(kernels: Kernels) -> dict[str, tuple[Callable[[], Any], float]]:
    """Operators over many rows: name -> (call, FLOP of unmasked dot products)."""
    n = 4096
    q, k, v = inputs(n)
    o, m, l = np.empty_like(q), np.empty((n, HQ), np.float32), np.empty((n, HQ), np.float32)
    colsum = np.empty((n, HKV), np.float32)
    rng = np.random.default_rng(1)
    memory = np.stack([np.sort(rng.choice(n, SLOTS, replace=False)) for _ in range(HKV)]).astype(np.int32)
    votes, chunk_votes = np.empty((HKV, SLOTS), np.float32), np.empty((CHUNK, HKV), np.float32)
    S = slice(0, CHUNK)
    query = QueryPhase2(kernels, *inputs(2 * n))
    kv, new, state = KV(k, v, n), {"q": q, "k": k, "v": v, "chunk_size": CHUNK}, {"o": o, "m": m, "l": l}
    intra = {f"{name}_intra": array[S] for name, array in state.items()}
    scores = {"score_mem": votes, "score_chunk": chunk_votes}
    dot = 2 * D * HQ  # one key for one token, all heads
    return {
        "ChunkedIntraAttention": (
            lambda: kernels.run("ChunkedIntraAttention", None, {**new, **state, "colsum": colsum}),
            2 * dot * n * (CHUNK + 1) / 2,
        ),
        "ChunkedIntraAttention without column sums": (
            lambda: kernels.run("ChunkedIntraAttention", None, {**new, **state}),
            2 * dot * n * (CHUNK + 1) / 2,
        ),
        "MemoryFusedAttention": (
            lambda: kernels.run(
                "MemoryFusedAttention", kv, {"q": q[S], "memory": memory, **intra, "colsum": votes}
            ),
            2 * dot * CHUNK * SLOTS,
        ),
        "Phase 2 with QuerySelect, n = 8192": (query, query.flops()),
        "CandidateScore": (
            lambda: kernels.run(
                "CachedCandidateScore",
                kv,
                {"q_window": q[CHUNK - WINDOW : CHUNK], "k": k[S], "memory": memory, **scores},
            ),
            dot * WINDOW * (SLOTS + CHUNK - (WINDOW - 1) / 2),
        ),
        "CachedAttention, n = 4096": (
            lambda: kernels.run("CachedAttention", kv, {"q": q, "o": o}),
            2 * dot * n * (n + 1) / 2,
        ),
    }


def decode_calls(kernels: Kernels) -> dict[str, tuple[Callable[[], Any], float]]:
    """One token behind a long cache: name -> (call, bytes)."""
    rng = np.random.default_rng(1)
    long_k, long_v = (rng.standard_normal((DECODE_LENGTH, HKV, D), dtype=np.float32) for _ in range(2))
    half_k, half_v = long_k.astype(np.float16), long_v.astype(np.float16)
    half = Kernels(kernels.threads, None, HQ, HKV, D, float(SCALE), True)
    q = rng.standard_normal((1, HQ, D), dtype=np.float32)
    o, q16, o16 = np.empty_like(q), q.astype(np.float16), q.astype(np.float16)
    return {
        "CachedAttention, n = 1": (
            lambda: kernels.run("CachedAttention", KV(long_k, long_v, DECODE_LENGTH), {"q": q, "o": o}),
            2.0 * long_k.nbytes,
        ),
        "CachedAttention, n = 1, float16": (
            lambda: half.run("CachedAttention", KV(half_k, half_v, DECODE_LENGTH), {"q": q16, "o": o16}),
            2.0 * half_k.nbytes,
        ),
    }


def kernel_calls(kernels: Kernels) -> dict[str, tuple[Callable[[], Any], float, str]]:
    """Name -> (call, work, the rate it is measured against)."""
    calls = {name: (*call, "matmul") for name, call in blocked_calls(kernels).items()}
    calls |= {name: (*call, "read") for name, call in decode_calls(kernels).items()}
    if Kernels.multiplies("bfloat16"):
        lower = Kernels(kernels.threads, None, HQ, HKV, D, float(SCALE), False, precision="bfloat16")
        calls |= {
            f"{name}, bfloat16": (*call, "matmul_bfloat16") for name, call in blocked_calls(lower).items()
        }
    return calls


def measure_kernels(kernels: Kernels, rounds: int) -> dict[str, Any]:
    rates, speeds = defaultdict(list), defaultdict(list)
    calls = kernel_calls(kernels)
    for call, _, _ in calls.values():
        call()
    for _ in range(rounds):
        for name, rate in machine_rates(kernels.threads).items():
            rates[name].append(rate)
        for name, (call, amount, _) in calls.items():
            speeds[name].append(amount / best_of(call) / 1e9)
    shares = {}
    for name, (_, amount, against) in calls.items():
        of_round = [x / y for x, y in zip(speeds[name], rates[against], strict=True)]
        shares[name] = {
            "work": amount,
            "against": against,
            "best": max(speeds[name]),
            "median": median(speeds[name]),
            "share_of_best": max(speeds[name]) / max(rates[against]),
            "share_median_of_rounds": median(of_round),
        }
    machine = {name: {"best": max(x), "median": median(x)} for name, x in rates.items()}
    return {"machine": machine, "kernels": shares}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    kernels = Kernels(args.threads, None, HQ, HKV, D, float(SCALE), False)
    shape = f"{HQ}/{HKV} heads of {D}, S = {CHUNK}, M = {SLOTS}, float32"
    own = {"threads": args.threads, "isa": kernels.isa, "torch": torch.__version__, "shape": shape}
    result = {"machine": describe() | own, "rates": measure_kernels(kernels, args.rounds)}
    text = json.dumps(result, indent=2)
    print(text)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
