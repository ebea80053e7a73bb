"""Count what a long prefill allocates in its layer loop, and compare its peak memory with the estimate.

    python -m bench.h2o_bench.allocations BUNDLE --tokens 32768 [--threads 2]

A small library, which this script compiles and preloads (Linux, needs a C compiler), counts calls of malloc,
similar functions and mmap by size. The counts are read at every step of the prefill: a layer's dense tile, a
chunk's Phase 2. Small requests are Python objects; an array would be large. The prompt runs twice, because a
thread of ONNX Runtime allocates four blocks of 64 KiB at its first matrix product.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from h2o_runtime.policies.prefill import Query

SIZES = {"64 KiB": 16, "1 MiB": 20}  # at least so many bytes, as a power of two
SOURCE = Path(__file__).with_name("count_allocations.c")
PRELOADED = "H2O_COUNT_ALLOCATIONS"


def start_again_preloaded() -> None:
    """Compile the counting library and run this command under it."""
    with tempfile.TemporaryDirectory() as folder:
        library = str(Path(folder) / "count_allocations.so")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", str(SOURCE), "-o", library, "-ldl"], check=True)
        environment = os.environ | {"LD_PRELOAD": library, PRELOADED: library}
        sys.exit(subprocess.run([sys.executable, *sys.argv], env=environment, check=False).returncode)


def measure(bundle: str, tokens: int, threads: int | None) -> dict[str, object]:
    import numpy as np

    from h2o_runtime import Generator
    from h2o_runtime.execution.footprint import footprint
    from h2o_runtime.execution.watch import Watch
    from h2o_runtime.ort.library import import_onnxruntime
    from h2o_runtime.process import peak_bytes, resident_bytes

    import_onnxruntime()  # counted among the libraries

    count = ctypes.CDLL(os.environ[PRELOADED]).allocations_of
    count.restype = ctypes.c_ulonglong
    libraries = resident_bytes()
    steps: list[list[int]] = []
    policy = Query()

    def step(done: int, total: int) -> None:
        steps.append([count(bits) for bits in SIZES.values()])

    with Generator.load(bundle, context=tokens, threads=threads) as generator:
        ids = np.random.default_rng(0).integers(2, generator.model.vocab_size, tokens)
        for _ in range(2):
            generator.reset()
            generator.prefill(ids, policy, Watch(progress=step))
        backend = generator.loaded.backend
        estimate = footprint(
            generator.model,
            tokens,
            policy,
            most_rows=backend.most_rows,
            native_products=backend.native_products,
            dense_precision=backend.dense_precision,
        )
        each_layer = len(steps) // 2 // generator.model.layers
    peak = peak_bytes()
    first, second = steps[: len(steps) // 2], steps[len(steps) // 2 :]
    # The first layer has nearly all first times: the largest tile, the first chunk, the first Phase 2. Its
    # dense graph differs from the others, so the second layer's first tile is a first time too.
    warm = first[each_layer + (tokens + policy.batch_size - 1) // policy.batch_size]
    return {
        "tokens": tokens,
        "steps_a_layer": each_layer,
        "before_the_first_layer_is_done": dict(zip(SIZES, warm, strict=True)),
        "first_prompt_afterwards": _between(warm, first[-1]),
        "second_prompt": _between(second[0], second[-1]),
        "libraries_bytes": libraries,
        "peak_bytes": peak,
        "estimate_bytes": asdict(estimate) | {"total": estimate.total},
        "peak_over_estimate": (peak - libraries) / estimate.total,
    }


def _between(start: list[int], stop: list[int]) -> dict[str, int]:
    return {name: last - begin for name, begin, last in zip(SIZES, start, stop, strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("bundle")
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    if PRELOADED not in os.environ:
        start_again_preloaded()
    print(json.dumps(measure(arguments.bundle, arguments.tokens, arguments.threads), indent=2))


if __name__ == "__main__":
    main()
