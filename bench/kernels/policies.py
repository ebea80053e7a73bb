"""Sparse policies' attention of one layer beside this repository's own full attention, in one run.

    python bench/kernels/policies.py [--threads 1] [--rounds 7]

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
from rounds import measure

from h2o_plugins._cpu import Kernels
from h2o_runtime.devices.host import HostDevice
from h2o_runtime.policies.prefill.minference import NEAR, SINK, VOTES, VerticalSlash
from h2o_runtime.policies.subquadratic import Pattern

HEADS, D = 8, 64
PATTERN = Pattern(window=128, global_tokens=1, strides=True, block=64, count_bias=False)
PAGE, BUDGET, CONTEXT = 16, 1024, 32_768
LINES, CHUNK, BAND, TILE = VerticalSlash(), 1024, 64, 64
Work = Callable[[], Any]


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

    def pattern() -> None:
        kernels.landmark_update(k, v, k_mean, v_mean, 0, n, PATTERN.block)
        numbers = (PATTERN.window, PATTERN.block, 1, 0)
        kernels.subquadratic_attention(q, k, v, k_mean, v_mean, first, n, *numbers, o)

    return {"full": lambda: kernels.cached_attention(q, k, v, n, o), "subquadratic": pattern}


def chunk(kernels: Kernels, n: int) -> tuple[dict[str, Work], dict[str, int]]:
    """The last chunk of n tokens: everything, its lines, and finding them; and the pairs of each."""
    q, k, v = rows(CHUNK, 0), rows(n, 1), rows(n, 2)
    o, draw = empty(*q.shape), np.random.default_rng(3)
    columns = np.sort(draw.choice(n, LINES.vertical, replace=False))
    bands = draw.choice(np.arange(2, n // BAND - 1), LINES.slash // BAND - 2, replace=False)
    distances = np.sort(np.concatenate([BAND * band + np.arange(BAND) for band in (0, 1, *bands)]))
    lists = [np.tile(one.astype(np.int32), (HEADS, 1)) for one in (columns, distances)]
    found = [np.empty_like(one) for one in lists]
    works = {
        "full": lambda: kernels.cached_attention(q, k, v, n, o),
        "lines": lambda: kernels.vertical_slash_attention(q, k, v, *lists, n, o),
        "finding": lambda: kernels.vertical_slash_select(q[-VOTES:], k, n, SINK, NEAR, *found),
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
    kernels.page_bounds(k, low, high, 0, n, PAGE)
    kernels.landmark_update(k, v, k_mean, v_mean, 0, n, PATTERN.block)

    def quest() -> None:
        kernels.page_bounds(k, low, high, n - 1, n, PAGE)
        kernels.page_select(q, low, high, n, PAGE, pages)
        kernels.page_attention(q, k, v, pages, n, PAGE, o)

    def pattern() -> None:
        kernels.landmark_update(k, v, k_mean, v_mean, n - 1, n, PATTERN.block)
        numbers = (PATTERN.window, PATTERN.block, 1, 0)
        kernels.subquadratic_attention(q, k, v, k_mean, v_mean, first, n, *numbers, o)

    exact = {"exact": lambda: kernels.cached_attention(q, k, v, n, o)}
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
        for name, one in times.items():
            one |= {"pairs": pairs[name], "ns_a_pair": 1e6 * one["median_ms"] / (HEADS * pairs[name])}
        found[f"prefill {n}"] = times
    for n in (8192, 16_384):
        works, pairs = chunk(kernels, n)
        times = measure(works, arguments.rounds)
        for name, one in times.items():
            one |= {"pairs": pairs[name], "ns_a_pair": 1e6 * one["median_ms"] / (HEADS * pairs[name])}
        found[f"last chunk of {n}"] = times
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
