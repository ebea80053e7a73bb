"""A bundle on a device against the same bundle on the CPU: python -m bench.gpu_check.bundles BUNDLE cuda 4000

The CPU multiplies by the weights' exact numbers. The last word is the prompt's length in tokens.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from bench.gpu_check.layers import sets_differ
from bench.gpu_check.rows import Row, tell
from numpy.typing import NDArray

from h2o_runtime import Generator
from h2o_runtime.answers.events import TokenGenerated
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.caches.offload import Offload
from h2o_runtime.execution.step_rows import StepRow
from h2o_runtime.limits import MOST_STEP_ROWS
from h2o_runtime.names import BACKENDS, DeviceName, Speculation
from h2o_runtime.policies.decode.quest import Quest
from h2o_runtime.policies.prefill import PREFILL, Full, PrefillPolicy, Query
from h2o_runtime.policies.prefill.h2o import H2O

Ids = NDArray[np.int64]
Logits = NDArray[np.float32]
COUNT = 64  # tokens after the prompt
REPEATED = 200  # tokens of a prompt with which it begins again and again, so that there are drafts
BATCH = 1024
ERROR = {"float32": 1e-3, "float16": 2e-2}  # of logits, of the largest
COUNTS, REPEATS = (1, 2, 4, 8, 16), 20  # of steps of several rows; a GPU pads other steps to these


@dataclass(frozen=True)
class Answer:
    """Greedy tokens, the prompt's last logits [vocab] and memory sets, and how long prompt and answer took."""

    tokens: list[int]
    logits: Logits
    sets: NDArray[np.int32]
    prompt_ms: float
    answer_ms: float


def answer(
    generator: Generator, ids: Ids, policy: PrefillPolicy[Any], speculate: Speculation = "off"
) -> Answer:
    """The prompt is read for its logits, and then again for the answer."""
    generator.reset()
    begin = time.perf_counter()
    logits = generator.prefill(ids, policy).copy()
    read = time.perf_counter()
    sets = generator.boundary_memory().copy()
    generator.reset()
    again = time.perf_counter()
    events = generator.generate(ids, COUNT, policy, speculate=speculate)
    tokens = [event.sampled.token for event in events if isinstance(event, TokenGenerated)]
    return Answer(tokens, logits, sets, 1e3 * (read - begin), 1e3 * (time.perf_counter() - again))


def checks(bundle: Path, device: DeviceName, n: int) -> Iterator[Row]:
    """A prompt of n tokens by several policies, with each backend that the bundle has; steps of several rows; other
    caches and ways to decode.
    """
    spec = Bundle.open(bundle).manifest.model
    latent = {"layers": {"latent": "absorbed"}} if spec.latent else {}
    common: dict[str, Any] = {"context": n + COUNT + MOST_STEP_ROWS, **latent}
    quest: dict[str, Any] = {} if spec.latent else {"decoding": Quest()}  # it reads no latents
    with Generator.load(bundle, device="cpu", dense_form="exact", **common) as theirs:
        for backend in BACKENDS:
            if backend != "onnxruntime" and not (bundle / "engines" / backend).is_dir():
                continue
            with Generator.load(bundle, device=device, backend=backend, **common) as ours:
                for name, policy in policies_of(ours).items():
                    yield {"backend": backend, "policy": name, **compare(ours, theirs, n, policy)}
                yield from ({"backend": backend, **row} for row in compare_steps(ours, theirs, n))
                yield {"backend": backend, "way": "lookup", **compare(ours, theirs, n, Full(), "lookup")}
        if device == "cuda":
            with Generator.load(bundle, device=device, cache=Offload(), **common) as ours:
                yield {"way": "offload", **compare(ours, theirs, n, Full())}
    if quest:
        with (
            Generator.load(bundle, device=device, **common, **quest) as ours,
            Generator.load(bundle, device="cpu", dense_form="exact", **common, **quest) as theirs,
        ):
            yield {"way": "quest", **compare(ours, theirs, n, Full())}


def policies_of(generator: Generator) -> dict[str, PrefillPolicy[Any]]:
    """With batches of about `BATCH` tokens, so that a prompt has several."""
    exported = generator.bundle.manifest.prefill
    sparse = exported if isinstance(exported, H2O) else Query()
    size = max(BATCH // sparse.chunk_size, 1) * sparse.chunk_size
    sparse = replace(sparse, batch_size=size)
    return {
        "full": Full(batch_size=size),
        "as exported": replace(exported, batch_size=size),
        "colsum": PREFILL.make({"score": "colsum"}, sparse),
        "window": PREFILL.make({"score": "window", "window": min(64, sparse.local)}, sparse),
    }


def compare(
    ours: Generator, theirs: Generator, n: int, policy: PrefillPolicy[Any], speculate: Speculation = "off"
) -> Row:
    """Greedy tokens must be the CPU's, unless float16 rounds; logits nearly; and two runs the same bits."""
    ids = np.random.default_rng(5).integers(3, ours.model.vocab_size, n)
    if speculate != "off":
        ids = np.resize(ids[:REPEATED], n)
    first, second = (answer(ours, ids, policy, speculate) for _ in range(2))
    drafted, truth = ours.drafts.drafted, answer(theirs, ids, policy)
    lacking = int(sets_differ(first.sets, truth.sets).sum()) if truth.sets.size else 0
    equal, error = first.tokens == truth.tokens, _error(first.logits, truth.logits)
    identical = first.tokens == second.tokens and np.array_equal(first.logits, second.logits)
    good = identical and error <= ERROR[ours.model.dtype] and (drafted > 0 or speculate == "off")
    return {
        "tokens_equal": equal,
        "runs_identical": identical,
        "error": error,
        "set_rows_that_differ": lacking,
        "drafted": drafted,
        "prompt_ms": second.prompt_ms,
        "cpu_prompt_ms": truth.prompt_ms,
        "answer_ms": second.answer_ms,
        "cpu_answer_ms": truth.answer_ms,
        "same": good and (equal or ours.model.dtype == "float16"),
    }


def _error(logits: Logits, truth: Logits) -> float:
    return float(np.abs(logits - truth).max() / np.abs(truth).max())


def compare_steps(ours: Generator, theirs: Generator, n: int) -> Iterator[Row]:
    """Steps of 1 to 16 rows against steps of one row."""
    ids = np.random.default_rng(4).integers(3, ours.model.vocab_size, n)
    truth = one_by_one(theirs, ids)
    for count, ms, logits in steps(ours, ids):
        error = _error(logits, truth[:count])
        yield {"rows": count, "ms": ms, "error": error, "same": error <= ERROR["float16"]}


def one_by_one(generator: Generator, ids: Ids) -> Logits:
    """After all of `ids` but its last tokens, these in steps of one row: [16, vocab]."""
    generator.reset()
    generator.prefill(ids[:-MOST_STEP_ROWS], Full())
    return np.stack([generator.decode(int(token)).copy() for token in ids[-MOST_STEP_ROWS:]])


def steps(generator: Generator, ids: Ids) -> Iterator[tuple[int, float, Logits]]:
    """The same tokens in steps of several rows: rows, milliseconds, logits [rows, vocab].

    Steps are recorded at first: the time is the median of the second half. No row stays in the session.
    """
    generator.reset()
    generator.prefill(ids[:-MOST_STEP_ROWS], Full())
    rows = [StepRow(int(token), generator.session) for token in ids[-MOST_STEP_ROWS:]]
    for count in COUNTS:
        times = []
        for _ in range(REPEATS):
            begin = time.perf_counter()
            logits = generator.loaded.forward.decode_rows(rows[:count])
            times.append(1e3 * (time.perf_counter() - begin))
        yield count, statistics.median(times[REPEATS // 2 :]), logits.copy()


if __name__ == "__main__":
    where: DeviceName = "cpu" if sys.argv[2] == "cpu" else "cuda"
    sys.exit(tell(lambda: checks(Path(sys.argv[1]), where, int(sys.argv[3]))))
