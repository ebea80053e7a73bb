"""The cost of a decode step of several rows relative to one row, for one conversation and for several.

    python -m bench.decode.rows BUNDLE [--threads 1] [--length 1000] [--rounds 20] [--cache-rows int8] [--wall]
        [--gguf FILE]

Steps of all sizes in turns, in one process; each one's processor time in milliseconds (with --wall the time that
passes), the least and the median of all rounds, the least in steps of one row, and rows in the time of one step.
--gguf adds llama.cpp's steps of as many conversations (llama-cpp-python; float16 rows).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
from bench.decode.llama_rows import LlamaRows

from h2o_runtime import Generator
from h2o_runtime.caches import Contiguous
from h2o_runtime.execution.forward import Forward
from h2o_runtime.execution.step_rows import StepRow
from h2o_runtime.policies.prefill import Full

ROWS = (1, 2, 3, 4, 6, 8, 12, 16)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("bundle")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--length", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--cache-rows", default="model", help="model, float16 or int8")
    parser.add_argument("--wall", action="store_true")
    parser.add_argument("--gguf", help="a model file for llama.cpp")
    flags = parser.parse_args()
    clock = time.perf_counter if flags.wall else time.process_time
    context = flags.length + max(ROWS)
    cache = Contiguous(rows=flags.cache_rows)
    loaded = Generator.load(flags.bundle, context=context, threads=flags.threads, device="cpu", cache=cache)
    generators = [loaded, *(Generator(loaded.loaded) for _ in range(max(ROWS) - 1))]
    draw = np.random.default_rng(0)
    peer = LlamaRows(flags.gguf, max(ROWS), flags.length, flags.threads) if flags.gguf else None
    for number, generator in enumerate(generators):
        ids = draw.integers(2, loaded.model.vocab_size, flags.length)
        generator.prefill(ids, Full())
        if peer is not None:
            peer.prefill(number, ids)
    steps: dict[tuple[str, int], Callable[[], object]] = {}
    for count in ROWS:
        for kind, sessions in (("one", count * [loaded]), ("several", generators[:count])):
            rows = [StepRow(5 + i, generator.session) for i, generator in enumerate(sessions)]
            steps[kind, count] = partial(_step, loaded.loaded.forward, rows)
        if peer is not None:
            steps["llama.cpp", count] = partial(peer.step, count)
    times: dict[tuple[str, int], list[float]] = {step: [] for step in steps}
    for _ in range(flags.rounds):
        for step, run in steps.items():
            begin = clock()
            run()
            times[step].append(1e3 * (clock() - begin))
    found = {
        f"{kind}, {count}": {
            "least": min(taken),
            "median": statistics.median(taken),
            "steps": min(taken) / min(times[kind, 1]),
            "times": count * min(times[kind, 1]) / min(taken),
        }
        for (kind, count), taken in times.items()
    }
    print(json.dumps(found, indent=2))


def _step(forward: Forward, rows: list[StepRow]) -> None:
    forward.decode_rows(rows)
    for row in rows:
        row.session.decoded([])


if __name__ == "__main__":
    main()
