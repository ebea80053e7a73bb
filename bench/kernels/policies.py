"""Sparse policies' attention of one layer beside this repository's own full attention, in one run.

    python -m bench.kernels.policies [--threads 1] [--rounds 7]

8 heads of 64, float32, random inputs: speed does not depend on them. Rounds are interleaved, so that all contenders
meet the same machine; medians are told, and the least. A pair is one query and one key or landmark that it sees; of
vertical-slash attention, one that its tiles have. Its diagonals lie in bands of 64, as those of texts do; finding
lines is timed by itself.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

import numpy as np
from bench.kernels.rounds import measure

from h2o_plugins._cpu import KV, Kernels
from h2o_runtime.devices.host import HostDevice
from h2o_runtime.policies.prefill.minference import NEAR, SINK, VOTES, VerticalSlash
from h2o_runtime.policies.subquadratic import Pattern

HEADS, D = 8, 64
PATTERN = Pattern(window=128, global_tokens=1, strides=True, block=64, count_bias=False)
PAGE, BUDGET, CONTEXT = 16, 1024, 32_768
LINES, CHUNK, BAND, TILE = VerticalSlash(), 1024, 64, 64
Work = Callable[[], Any]
NUMBERS = {"window": PATTERN.window, "block_size": PATTERN.block, "strides": 1, "count_bias": 0}


def empty(*shape: int) -> Any:
    """Memory as the runtime has it."""
    return HostDevice().empty(shape, np.float32)


def rows(n: int, seed: int) -> Any:
    return np.random.default_rng(seed).standard_normal(out=empty(n, HEADS, D), dtype=np.float32)


def prefill(kernels: Kernels, n: int) -> dict[str, Work]:
    """A prompt of n tokens: everything, and the subquadratic pattern with its landmarks."""
    q, k, v = (rows(n, seed) for seed in range(3))
    o, first = empty(*q.shape), np.zeros(1, np.int32)
    k_mean, v_mean = (empty(n // PATTERN.block, HEADS, D) for _ in range(2))

    kv, means, call = KV(k, v, n), {"k_mean": k_mean, "v_mean": v_mean}, {"q": q, "o": o}

    def pattern() -> None:
        kernels.run("LandmarkUpdate", kv, {**means, "start": 0, "block_size": PATTERN.block})
        kernels.run("SubquadraticAttention", kv, {**call, **means, "global_rows": first, **NUMBERS})

    return {"full": lambda: kernels.run("CachedAttention", kv, call), "subquadratic": pattern}


def chunk(kernels: Kernels, n: int) -> tuple[dict[str, Work], dict[str, int]]:
    """The last chunk of n tokens: everything, its lines, and finding them; and the pairs of each."""
    q, k, v = rows(CHUNK, 0), rows(n, 1), rows(n, 2)
    o, draw = empty(*q.shape), np.random.default_rng(3)
    columns = np.sort(draw.choice(n, LINES.vertical, replace=False))
    bands = draw.choice(np.arange(2, n // BAND - 1), LINES.slash // BAND - 2, replace=False)
    distances = np.sort(np.concatenate([BAND * band + np.arange(BAND) for band in (0, 1, *bands)]))
    both = {"columns": columns, "distances": distances}
    lists = {name: np.tile(lines.astype(np.int32), (HEADS, 1)) for name, lines in both.items()}
    found = {name: np.empty_like(lines) for name, lines in lists.items()}
    kv, call, kept = KV(k, v, n), {"q": q, "o": o}, {"sink": SINK, "near": NEAR}
    works = {
        "full": lambda: kernels.run("CachedAttention", kv, call),
        "lines": lambda: kernels.run("VerticalSlashAttention", kv, {**call, **lists}),
        "finding": lambda: kernels.run("VerticalSlashSelect", kv, {"q": q[-VOTES:], **found, **kept}),
    }
    pairs = {"full": CHUNK * n - CHUNK * (CHUNK - 1) // 2, "lines": tiled_pairs(n, columns, distances)}
    return works, pairs | {"finding": VOTES * n - VOTES * (VOTES - 1) // 2}


def tiled_pairs(n: int, columns: Any, distances: Any) -> int:
    """Of the last chunk's rows: keys up to themselves in their tile's runs, and columns elsewhere."""
    pairs = 0
    for start in range(n - CHUNK, n, TILE):
        end, last, seen = start + TILE, -n, np.zeros(n + 2 * TILE, bool)
        seen[columns] = True
        for distance in distances[::-1]:
            stop = max(end - int(distance), TILE)
            if stop > last:
                last = stop if stop > last + TILE else last + TILE
                seen[last - TILE : last] = True
        pairs += sum(int(seen[: row + 1].sum()) for row in range(start, end))
    return pairs


def step(kernels: Kernels) -> dict[str, Work]:
    """One token behind a long past: everything, the best pages, the pattern; what they keep up to date too."""
    n = CONTEXT
    q, k, v = rows(1, 0), rows(n, 1), rows(n, 2)
    o, first = empty(*q.shape), np.zeros(1, np.int32)
    low, high = (empty(n // PAGE, HEADS, D) for _ in range(2))
    k_mean, v_mean = (empty(n // PATTERN.block, HEADS, D) for _ in range(2))
    pages = np.empty((HEADS, BUDGET // PAGE), np.int32)
    kv, means, call = KV(k, v, n), {"k_mean": k_mean, "v_mean": v_mean}, {"q": q, "o": o}
    bounds, listed = {"k_min": low, "k_max": high}, {"page_size": PAGE, "page_list": pages}
    kernels.run("PageBounds", kv, {**bounds, "start": 0, "page_size": PAGE})
    kernels.run("LandmarkUpdate", kv, {**means, "start": 0, "block_size": PATTERN.block})

    def quest() -> None:
        kernels.run("PageBounds", kv, {**bounds, "start": n - 1, "page_size": PAGE})
        kernels.run("PageSelect", kv, {"q": q, **bounds, **listed})
        kernels.run("PageAttention", kv, {**call, **listed})

    def pattern() -> None:
        kernels.run("LandmarkUpdate", kv, {**means, "start": n - 1, "block_size": PATTERN.block})
        kernels.run("SubquadraticAttention", kv, {**call, **means, "global_rows": first, **NUMBERS})

    exact = {"exact": lambda: kernels.run("CachedAttention", kv, call)}
    return exact | {"quest": quest, "subquadratic": pattern}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    kernels = Kernels(
        threads=arguments.threads,
        isa=None,
        query_heads=HEADS,
        kv_heads=HEADS,
        head_size=D,
        scale=D**-0.5,
        half=False,
    )
    found: dict[str, Any] = {"isa": kernels.isa, "threads": kernels.threads, "heads": HEADS, "head_size": D}
    # First, in memory that nobody had before, as a session's cache is.
    found[f"step {CONTEXT}"] = measure(step(kernels), 5 * arguments.rounds)
    for n in (512, 1024, 2048, 4096):
        times = measure(prefill(kernels, n), arguments.rounds)
        pairs = {"full": n * (n + 1) // 2, "subquadratic": int(PATTERN.visible(n).sum())}
        for name, seconds in times.items():
            seconds |= {"pairs": pairs[name], "ns_a_pair": 1e6 * seconds["median_ms"] / (HEADS * pairs[name])}
        found[f"prefill {n}"] = times
    for n in (8192, 16_384):
        works, pairs = chunk(kernels, n)
        times = measure(works, arguments.rounds)
        for name, seconds in times.items():
            seconds |= {"pairs": pairs[name], "ns_a_pair": 1e6 * seconds["median_ms"] / (HEADS * pairs[name])}
        found[f"last chunk of {n}"] = times
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
