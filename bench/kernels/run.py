"""How near the CPU kernels come to what the machine can do, and one layer's attention against its peers.

    python -m bench.kernels.run --threads 2 --out bench/kernels/results/NAME.json

Everything is interleaved: a round measures the machine's rates, every kernel and every peer once, so that
a shared machine's ups and downs meet all of them. Shares and ratios are of medians over the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from bench.kernels import layer
from bench.kernels.layer import CHUNK, HKV, HQ, SCALE, D

from h2o_plugins._cpu import KV, Kernels
from h2o_runtime.ort.library import import_onnxruntime

onnxruntime = import_onnxruntime()

HERE = Path(__file__).parent
SLOTS = layer.LOCAL + layer.HEAVY
WINDOW = 64
DECODE_LENGTH = 65_536  # two caches of 128 MiB: larger than the caches of the processor


class Products:
    """torch's matrix products: of float32, and of bfloat16 where the kernels multiply it too."""

    def __init__(self, size: int) -> None:
        self.flops = 2 * size**3
        dtypes = {"matmul": torch.float32}
        if Kernels.multiplies("bfloat16"):
            dtypes["matmul_bfloat16"] = torch.bfloat16
        self._factors = {
            name: [torch.randn(size, size).to(dtype) for _ in range(3)] for name, dtype in dtypes.items()
        }

    def rates(self) -> dict[str, float]:
        """GFLOP/s of one moment."""
        found = {}
        for name, (a, b, c) in self._factors.items():
            seconds = min(clock(partial(torch.mm, a, b, out=c)) for _ in range(2))
            found[name] = self.flops / seconds / 1e9
        return found


def machine_rates(build: Path, threads: int, products: Products) -> dict[str, float]:
    """Rates of one moment: matrix products (of float32 the better of torch's and our own), reading, copying."""
    reply = subprocess.run(
        [build / "h2o_machine", str(threads), "3"], check=True, capture_output=True, text=True
    ).stdout
    result = json.loads(reply)
    torchs = products.rates()
    return {
        **torchs,
        "matmul": max(result["matmul_gflops"]["best"], torchs["matmul"]),
        "matmul_torch": torchs["matmul"],
        "read": result["read_gbps"]["best"],
        "copy": result["copy_gbps"]["best"],
    }


def clock(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def best_of(call: Callable[[], Any]) -> float:
    return min(clock(call) for _ in range(3))


def blocked_calls(kernels: Kernels) -> dict[str, tuple[Callable[[], Any], float]]:
    """Operators over many rows: name -> (call, FLOP of unmasked dot products)."""
    n = 4096
    q, k, v = layer.inputs(n)
    o, m, l = np.empty_like(q), np.empty((n, HQ), np.float32), np.empty((n, HQ), np.float32)
    colsum = np.empty((n, HKV), np.float32)
    rng = np.random.default_rng(1)
    memory = np.stack([np.sort(rng.choice(n, SLOTS, replace=False)) for _ in range(HKV)]).astype(np.int32)
    votes, chunk_votes = np.empty((HKV, SLOTS), np.float32), np.empty((CHUNK, HKV), np.float32)
    S = slice(0, CHUNK)
    query = layer.QueryPhase2(kernels, *layer.inputs(2 * n))
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


def measure_kernels(kernels: Kernels, build: Path, rounds: int) -> dict[str, Any]:
    products = Products(2048)
    rates, speeds = defaultdict(list), defaultdict(list)
    calls = kernel_calls(kernels)
    for call, _, _ in calls.values():
        call()
    for _ in range(rounds):
        for name, rate in machine_rates(build, kernels.threads, products).items():
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


def measure_layer(kernels: Kernels, lengths: list[int], rounds: int) -> dict[str, Any]:
    result = {}
    for n in lengths:
        q, k, v = layer.inputs(n)
        o = np.empty_like(q)
        contenders: dict[str, Callable[[], Any]] = {
            "h2o": layer.H2O(kernels, q, k, v),
            "torch SDPA": layer.torch_sdpa(q, k, v),
            "onnxruntime GroupQueryAttention": layer.ort_gqa(q, k, v, kernels.threads),
            "full (CachedAttention)": partial(kernels.run, "CachedAttention", KV(k, v, n), {"q": q, "o": o}),
        }
        check_peers(contenders, o, n)
        times: dict[str, list[float]] = defaultdict(list)
        for _ in range(rounds):
            for name, call in contenders.items():
                times[name].append(clock(call))
        typical = {name: median(x) for name, x in times.items()}
        peer = min(typical["torch SDPA"], typical["onnxruntime GroupQueryAttention"])
        result[str(n)] = {
            "seconds_median": typical,
            "seconds_best": {name: min(x) for name, x in times.items()},
            "faster_than_best_peer": peer / typical["h2o"],
            "dot_products_allow": n * (n + 1) / 2 / work(n),
        }
        print(f"{n:6}", {name: round(x, 4) for name, x in typical.items()}, f"{peer / typical['h2o']:.2f} x")
    return result


def work(n: int) -> float:
    """Dot products of the h2o policy, a head."""
    return n * (CHUNK + 1) / 2 + (n - CHUNK) * SLOTS


def check_peers(contenders: dict[str, Callable[[], Any]], o: np.ndarray[Any, Any], n: int) -> None:
    """All that compute full attention must agree, or the comparison means nothing. Warms up as well."""
    contenders["h2o"]()
    contenders["full (CachedAttention)"]()
    sdpa = contenders["torch SDPA"]()[0].permute(1, 0, 2).numpy()
    gqa = contenders["onnxruntime GroupQueryAttention"]()[0].reshape(n, HQ, D)
    for peer in (sdpa, gqa):
        worst = float(np.abs(peer - o).max())
        if not worst < 1e-4:
            raise SystemExit(
                f"a peer's result differs by {worst}: it does not compute what it is compared for"
            )


def describe(threads: int, isa: str) -> dict[str, Any]:
    cpu = next((x for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("model name")), "")
    return {
        "cpu": cpu.partition(":")[2].strip() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": threads,
        "isa": isa,
        "load_average": os.getloadavg(),
        "torch": torch.__version__,
        "onnxruntime": onnxruntime.__version__,
        "shape": f"{HQ}/{HKV} heads of {D}, S = {CHUNK}, L = {layer.LOCAL}, H = {layer.HEAVY}, float32",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=5, help="of the layer; kernels get three times as many")
    parser.add_argument("--lengths", type=int, nargs="*", default=[4096, 8192, 16384])
    parser.add_argument("--build", type=Path, default=HERE.parents[1] / "build" / "bench_kernels")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()

    subprocess.run(["cmake", "-S", HERE, "-B", args.build], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", args.build], check=True, stdout=subprocess.DEVNULL)
    torch.set_num_threads(args.threads)
    kernels = Kernels(args.threads, None, HQ, HKV, D, float(SCALE), False)
    result = {"machine": describe(args.threads, kernels.isa)}
    result["layer"] = measure_layer(kernels, args.lengths, args.rounds)
    result["rates"] = measure_kernels(kernels, args.build, 3 * args.rounds)
    text = json.dumps(result, indent=2)
    print(text)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
