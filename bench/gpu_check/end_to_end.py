"""A whole bundle on the GPU against the same bundle on the CPU: python -m bench.gpu_check.end_to_end BUNDLE

Greedy tokens after a long prompt must be equal under every policy, logits nearly, and two runs to the last bit.
Exit code 0: all equal; 1: something differs; 77: cannot run here, and the last line says why.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from bench.gpu_check.policies import sets_differ
from bench.gpu_check.steps import NOT_HERE
from numpy.typing import NDArray

from h2o_runtime import Generator
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.errors import H2OError
from h2o_runtime.names import BACKENDS, BackendName, DeviceName
from h2o_runtime.policies.prefill import PREFILL, Full, PrefillPolicy, Query
from h2o_runtime.policies.prefill.h2o import H2O

BATCH = 1024
ERROR = 1e-3  # of the prompt's logits, of the largest
Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Run:
    """The results of one policy: greedy tokens, every step's logits [steps, vocab], the prompt's memory sets
    [layers, boundaries, Hs, M], and milliseconds."""

    tokens: list[int]
    logits: NDArray[np.float32]
    sets: NDArray[np.int32]
    first_token_ms: float
    token_ms: float


def policies(bundle: PrefillPolicy[Any]) -> dict[str, PrefillPolicy[Any]]:
    """With batches of about `BATCH` tokens, so that a prompt has several."""
    sparse = bundle if isinstance(bundle, H2O) else Query()
    chunks = max(BATCH // sparse.chunk_size, 1)
    bundle = replace(bundle, batch_size=chunks * sparse.chunk_size)
    sparse = replace(sparse, batch_size=bundle.batch_size)
    return {
        "full": Full(batch_size=bundle.batch_size),
        "as exported": bundle,
        "colsum": PREFILL.make({"score": "colsum"}, sparse),
        "window": PREFILL.make({"score": "window", "window": min(64, sparse.local)}, sparse),
    }


def greedy(generator: Generator, ids: Ids, policy: PrefillPolicy[Any], steps: int) -> Run:
    """A prompt from an empty cache, and the likeliest tokens after it."""
    generator.reset()
    begin = time.perf_counter()
    logits = generator.prefill(ids, policy)
    first = time.perf_counter() - begin
    sets = generator.boundary_memory().copy()
    rows, tokens, seconds = [logits], [int(logits.argmax())], []
    while len(tokens) < steps:
        begin = time.perf_counter()
        logits = generator.decode(tokens[-1])
        seconds.append(time.perf_counter() - begin)
        rows.append(logits)
        tokens.append(int(logits.argmax()))
    return Run(tokens, np.stack(rows), sets, 1e3 * first, 1e3 * statistics.median(seconds))


def load(bundle: Path, backend: BackendName, context: int, device: DeviceName) -> Generator:
    """As Generator.load. Latents are absorbed, for all policies."""
    layers = {"latent": "absorbed"} if Bundle.open(bundle).manifest.model.latent else {}
    return Generator.load(bundle, backend=backend, context=context, device=device, layers=layers)


def compare(bundle: Path, backend: BackendName, n: int, steps: int) -> list[dict[str, Any]]:
    """One row per policy. Raises what `Generator.load` raises."""
    rows = []
    with (
        load(bundle, backend, n + steps, "cuda") as gpu,
        load(bundle, "onnxruntime", n + steps, "cpu") as cpu,
    ):
        ids = np.random.default_rng(5).integers(3, gpu.model.vocab_size, n)
        for name, policy in policies(gpu.bundle.manifest.prefill).items():
            first, second = (greedy(gpu, ids, policy, steps) for _ in range(2))
            truth = greedy(cpu, ids, policy, steps)
            rows.append(
                {
                    "policy": name,
                    "tokens_equal": first.tokens == truth.tokens,
                    "runs_identical": bool(np.array_equal(first.logits, second.logits)),
                    "error": float(
                        np.abs(first.logits[0] - truth.logits[0]).max() / np.abs(truth.logits[0]).max()
                    ),
                    **other_sets(first.sets, truth.sets),
                    "first_token_ms": second.first_token_ms,
                    "cpu_first_token_ms": truth.first_token_ms,
                    "token_ms": second.token_ms,
                    "cpu_token_ms": truth.token_ms,
                }
            )
    return rows


def other_sets(got: NDArray[np.int32], truth: NDArray[np.int32]) -> dict[str, Any]:
    """How many rows of the memory sets differ, and in which layer, boundary and head they do first."""
    lacking = sets_differ(got, truth) if truth.size else np.zeros(0, np.int64)
    where = [", ".join(map(str, place)) for place in np.argwhere(lacking)]
    return {"set_rows_that_differ": int(lacking.sum()), "first_in": where[0] if where else ""}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--backend", choices=BACKENDS, default="onnxruntime")
    parser.add_argument("-n", "--tokens", type=int, default=4000, help="length of the prompt")
    parser.add_argument("--steps", type=int, default=64)
    arguments = parser.parse_args()
    try:
        rows = compare(arguments.bundle, arguments.backend, arguments.tokens, arguments.steps)
    except H2OError as error:
        print(error)
        return NOT_HERE
    for row in rows:
        print(", ".join(f"{name} {value}" for name, value in row.items()))
    good = [row["tokens_equal"] and row["runs_identical"] and row["error"] <= ERROR for row in rows]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
