"""Times a generated token of a whole model with every kind of cache, in one run.

    python -m bench.kernels.cached_step BUNDLE [--threads 2] [--lengths 8192,32760] [--rounds 4]

Caches are filled with random rows instead of a prompt: speed does not depend on the values. Rounds are
interleaved, with 8 tokens per cache. Prints milliseconds per token, median and minimum.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import numpy as np

from h2o_runtime import Generator
from h2o_runtime.caches import Cache, Contiguous, Paged, Rows
from h2o_runtime.caches.reuse import Provenance
from h2o_runtime.policies.prefill import Full

CACHES: dict[str, Cache] = {
    "contiguous model": Contiguous(),
    "contiguous float16": Contiguous(rows="float16"),
    "contiguous int8": Contiguous(rows="int8"),
    "paged model": Paged(),
    "paged int8": Paged(rows="int8"),
}
STEPS = 9  # per round; the first token only warms the processor's caches


def fill(generator: Generator, length: int) -> None:
    """A conversation of random rows and tokens."""
    draw, model, session = np.random.default_rng(0), generator.model, generator.session
    generator.reset()
    rows = draw.standard_normal((length, model.kv_heads, model.head_size), np.float32)
    for layer in range(model.layers):
        with generator.session.store.open(layer) as cache:
            for target in cache.target(Rows(0, length)).values():
                target[:] = rows
            cache.commit(Rows(0, length))
    session.append(draw.integers(0, model.vocab_size, length), generated=False)
    session.origin = Provenance.fresh(Full(), length)


def measure(generators: dict[str, Generator], rounds: int) -> dict[str, dict[str, float]]:
    """Milliseconds per token by cache."""
    times: dict[str, list[float]] = {name: [] for name in generators}
    for _ in range(rounds):
        for name, generator in generators.items():
            for token in range(STEPS):
                begin = time.perf_counter()
                generator.decode(token)
                if token:
                    times[name].append(1e3 * (time.perf_counter() - begin))
    return {name: {"median": statistics.median(taken), "least": min(taken)} for name, taken in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("bundle")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--lengths", default="8192,32760")
    parser.add_argument("--rounds", type=int, default=4)
    flags = parser.parse_args()
    lengths = list(map(int, flags.lengths.split(",")))
    generators = {
        name: Generator.load(
            flags.bundle, context=max(lengths), threads=flags.threads, device="cpu", cache=cache
        )
        for name, cache in CACHES.items()
    }
    found = {}
    for length in lengths:
        for generator in generators.values():
            fill(generator, length - flags.rounds * STEPS)
        found[length] = measure(generators, flags.rounds)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
