"""Time of choosing keys under the rule `query`, as a share of the attention to them.

    python -m bench.kernels.choosing [--tokens 8192 16384] [--precision float32 bfloat16 int16] [--rounds 7]

The operators of Phase 2 in the last logical batch of a prompt, as the rule calls them by default: BlockSelect and
QuerySelect choose, TiledMemoryAttention attends. Head counts are those of trained models. Inputs are random: speed
does not depend on them. Precisions take turns in each round; shares are medians over rounds, by processor time of
one thread.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from h2o_plugins._cpu import KV, Kernels
from h2o_runtime import Query
from h2o_runtime.policies.prefill.h2o.query_store import TileGroup
from h2o_runtime.policies.prefill.h2o.query_tiles import BLOCK
from h2o_runtime.schedule import Span

# Query heads, key/value heads and head size.
MODELS = {
    "SmolLM2-135M": (9, 3, 64),
    "Qwen2.5-0.5B": (14, 2, 64),
    "Llama-3.2-1B": (32, 8, 64),
    "Qwen3-0.6B": (16, 8, 128),
}
OPERATORS = ("BlockSelect", "QuerySelect", "TiledMemoryAttention")
Work = Callable[[], Any]


class Batch:
    """The last logical batch of a prompt of one layer, in one precision."""

    def __init__(self, kernels: Kernels, query_heads: int, kv_heads: int, d: int, tokens: int) -> None:
        self.kernels, self.kv_heads, self.rule = kernels, kv_heads, Query()
        rows = self.rule.batch_rows(tokens)
        self.first = (tokens - 1) // rows * rows
        rng, n = np.random.default_rng(0), tokens - self.first
        self.q = rng.standard_normal((n, query_heads, d), dtype=np.float32)
        k, v = (rng.standard_normal((tokens, kv_heads, d), dtype=np.float32) for _ in range(2))
        self.kv, self.o = KV(k, v, tokens), np.zeros_like(self.q)
        self.m, self.l = np.zeros((n, query_heads), np.float32), np.ones((n, query_heads), np.float32)
        groups = self.rule.groups(0, 0, Span(self.first, tokens), kv_heads)
        self.calls = [self._calls(group) for group in groups]

    def _calls(self, group: TileGroup) -> list[tuple[str, dict[str, Any]]]:
        rule, count = self.rule, len(group.tiles)
        rows = slice(group.tiles[0].start - self.first, group.tiles[-1].stop - self.first)
        first = np.array([tile.start for tile in group.tiles])
        candidates = np.empty((count, self.kv_heads, group.narrowed), np.int32)
        chosen = np.empty((count, group.sets.heads, group.sets.memory), np.int32)
        tiles = {"q": self.q[rows], "tile": rule.tile_rows}
        lists = {"local": rule.local, "past": first - first % rule.chunk_size, "candidates": candidates}
        state = {"o_intra": self.o[rows], "m_intra": self.m[rows], "l_intra": self.l[rows]}
        votes = tiles | lists | {"stride": group.stride}
        calls = [
            ("QuerySelect", votes | {"first": first, "reach": group.stride // 2, "memory_next": chosen}),
            ("TiledMemoryAttention", tiles | {"memory": chosen} | state),
        ]
        return [("BlockSelect", votes | {"block_size": BLOCK}), *calls] if group.narrowed else calls

    def run(self) -> dict[str, float]:
        """Processor milliseconds of each operator."""
        taken = dict.fromkeys(OPERATORS, 0.0)
        for calls in self.calls:
            for name, arguments in calls:
                begin = time.process_time()
                self.kernels.run(name, self.kv, arguments)
                taken[name] += 1e3 * (time.process_time() - begin)
        return taken


def measure(batches: Mapping[str, Batch], rounds: int) -> dict[str, dict[str, float]]:
    """Median milliseconds of each operator, and the share, by precision, without a round before the others."""
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in batches}
    for _ in range(rounds + 1):
        for name, batch in batches.items():
            taken = batch.run()
            share = (taken["BlockSelect"] + taken["QuerySelect"]) / taken["TiledMemoryAttention"]
            rows[name].append(taken | {"share": share})
    return {
        name: {column: statistics.median(row[column] for row in taken[1:]) for column in taken[0]}
        for name, taken in rows.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192, 16_384])
    parser.add_argument("--precision", nargs="+", default=["float32", "bfloat16", "int16"])
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--isa")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    print(f"{'model':14} {'tokens':>7} {'precision':>9}", *(f"{name:>20}" for name in OPERATORS), "share")
    for model in arguments.models:
        query_heads, kv_heads, d = MODELS[model]
        sizes = {"query_heads": query_heads, "kv_heads": kv_heads, "head_size": d, "scale": d**-0.5}
        for tokens in arguments.tokens:
            batches = {
                precision: Batch(
                    Kernels(threads=1, isa=arguments.isa, half=False, precision=precision, **sizes),
                    query_heads,
                    kv_heads,
                    d,
                    tokens,
                )
                for precision in arguments.precision
            }
            for precision, found in measure(batches, arguments.rounds).items():
                times = (f"{found[name]:20.1f}" for name in OPERATORS)
                print(f"{model:14} {tokens:7} {precision:>9}", *times, f"{found['share']:5.2f}", flush=True)


if __name__ == "__main__":
    main()
