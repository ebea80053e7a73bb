"""Times attention of one generated token with every kind of cache, in one run.

    python -m bench.kernels.caches [--threads 2] [--lengths 8192,32768] [--dtypes float32,int8] [--rounds 7]

30 layers of 9 query heads on 3 key/value heads of 64, with random keys: speed does not depend on the values.
Every layer has its own rows, as in a model, so that a token's rows come from memory. Pages are in the order
of a single growing sequence, or in random order. Rounds are interleaved, so that load affects all caches
alike. Prints milliseconds, median and minimum.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

import numpy as np
from bench.kernels.rounds import measure

from h2o_plugins._cpu import KV, Kernels
from h2o_runtime.caches.stored import RowFormat, StoredRows
from h2o_runtime.devices.host import HostDevice
from h2o_runtime.layer_spec import CacheRow

LAYERS, HEADS, GROUP, D, PAGE = 30, 3, 3, 64, 16


def stored(dtype: str, rows: int) -> list[StoredRows]:
    """Every layer's rows."""
    draw, device = np.random.default_rng(0), HostDevice()
    form = RowFormat(np.dtype(dtype), CacheRow(HEADS, D))
    layers = [form.new(rows, device) for _ in range(LAYERS)]
    values: Any = draw.standard_normal((rows, HEADS, D), np.float32)
    values = (32 * values).clip(-127, 127).astype(np.int8) if form.scaled else values.astype(form.dtype)
    for layer in layers:
        layer.k[:], layer.v[:] = values, values
        for scales in layer.scales or ():
            scales[:] = 1 / 32
    return layers


def token(kernels: Kernels, layers: list[StoredRows], table: Any) -> Callable[[], None]:
    """One generated token's attention in all layers."""
    q, length = np.random.default_rng(1).standard_normal((1, HEADS * GROUP, D), np.float32), len(layers[0].k)
    o = np.empty_like(q)

    def work() -> None:
        for layer in layers:
            kv = KV(layer.k, layer.v, length, table, PAGE if table is not None else 0, layer.scales)
            kernels.run("CachedAttention", kv, {"q": q, "o": o})

    return work


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--lengths", default="8192,32768")
    parser.add_argument("--dtypes", default="float32,float16,int8")
    parser.add_argument("--rounds", type=int, default=7)
    flags = parser.parse_args()
    kernels = Kernels(
        threads=flags.threads,
        isa=None,
        query_heads=HEADS * GROUP,
        kv_heads=HEADS,
        head_size=D,
        scale=D**-0.5,
        half=False,
    )
    found = {}
    for length in map(int, flags.lengths.split(",")):
        in_order = np.arange(length // PAGE, dtype=np.int32)
        tables = {
            "contiguous": None,
            "pages": in_order,
            "mixed": np.random.default_rng(2).permutation(in_order),
        }
        works: dict[str, Callable[[], None]] = {}
        for dtype in flags.dtypes.split(","):
            layers = stored(dtype, length)
            works |= {f"{dtype} {name}": token(kernels, layers, table) for name, table in tables.items()}
        found[length] = measure(works, flags.rounds)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
