"""Attention to latents beside what the machine can do, and beside grouped queries, in one run.

    python -m bench.kernels.latent [--threads 1] [--rounds 5] [--out bench/kernels/results/NAME.json]

Decode is absorbed: the query heads of DeepSeek-V2-Lite (16) and of DeepSeek-V2 (128) share one key of 576, whose
first 512 numbers are its value. Prefill is expanded, 16 heads of 192 with values of 128, beside 32/8 heads of 64.
Random inputs: speed does not depend on them. A round measures the machine's rates and every contender once; shares
are medians over the rounds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from h2o_plugins._cpu import KV, Kernels
from h2o_runtime.devices.host import HostDevice

HERE = Path(__file__).parent
LENGTH, PROMPT = 8192, 2048
Contender = tuple[Callable[[], Any], float, float]  # what runs, its FLOP, the bytes of the cache it reads


def rows(n: int, heads: int, size: int, dtype: str = "float32") -> Any:
    """Memory as the runtime has it."""
    array = HostDevice().empty((n, heads, size), np.dtype(dtype))
    array[:] = np.random.default_rng(n + size).standard_normal((n, heads, size), dtype=np.float32)
    return array


def absorbed(threads: int, heads: int, dtype: str) -> Contender:
    """One token behind LENGTH latents; queries and outputs are float32."""
    kernels = Kernels(threads, None, heads, 1, 576, 0.07, False, 512)
    cache, q, o = rows(LENGTH, 1, 576, dtype), rows(1, heads, 576), rows(1, heads, 512)
    flop = 2.0 * (576 + 512) * heads * LENGTH
    kv, call = KV(cache, cache, LENGTH), {"q": q, "o": o}
    return lambda: kernels.run("CachedAttention", kv, call), flop, cache.nbytes


def prompt(threads: int, heads: int, kv_heads: int, d: int, dv: int) -> Contender:
    """PROMPT tokens that see each other."""
    kernels = Kernels(threads, None, heads, kv_heads, d, d**-0.5, False, dv)
    q, k, v = rows(PROMPT, heads, d), rows(PROMPT, kv_heads, d), rows(PROMPT, kv_heads, dv)
    o = rows(PROMPT, heads, dv)
    flop = 2.0 * (d + dv) * heads * PROMPT * (PROMPT + 1) / 2
    kv, call = KV(k, v, PROMPT), {"q": q, "o": o}
    return lambda: kernels.run("CachedAttention", kv, call), flop, k.nbytes + v.nbytes


def machine(build: Path, threads: int) -> dict[str, float]:
    """FLOP a second of matrix products, bytes a second of reading."""
    command = [str(build / "h2o_machine"), str(threads), "2"]
    reply = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {"matmul": reply["matmul_gflops"]["best"] * 1e9, "read": reply["read_gbps"]["best"] * 1e9}


def measure(build: Path, threads: int, rounds: int) -> dict[str, Any]:
    contenders = {
        "decode, 16 heads, float32": absorbed(threads, 16, "float32"),
        "decode, 16 heads, float16": absorbed(threads, 16, "float16"),
        "decode, 128 heads, float32": absorbed(threads, 128, "float32"),
        "prompt, 16 heads of 192/128": prompt(threads, 16, 16, 192, 128),
        "prompt, 32/8 heads of 64": prompt(threads, 32, 8, 64, 64),
    }
    for call, _, _ in contenders.values():
        call()
    found: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in contenders}
    for _ in range(rounds):
        rates = machine(build, threads)
        for name, (call, flop, nbytes) in contenders.items():
            best = 1e9
            for _ in range(3):
                begin = time.perf_counter()
                call()
                best = min(best, time.perf_counter() - begin)
            found[name]["milliseconds"].append(best * 1e3)
            found[name]["gflop_per_second"].append(flop / best / 1e9)
            found[name]["share_of_matmul"].append(flop / best / rates["matmul"])
            found[name]["share_of_reading"].append(nbytes / best / rates["read"])
    return {name: {what: median(x) for what, x in values.items()} for name, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--build", type=Path, default=HERE.parents[1] / "build" / "bench_kernels")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    subprocess.run(["cmake", "-S", HERE, "-B", args.build], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", args.build], check=True, stdout=subprocess.DEVNULL)
    found = measure(args.build, args.threads, args.rounds)
    for name, values in found.items():
        print(f"{name:30}", "  ".join(f"{what} {value:.3g}" for what, value in values.items()))
    if args.out:
        args.out.write_text(json.dumps({"threads": args.threads, **found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
