"""Steps of 1 to 16 rows of a whole model, against the CPU: python -m bench.gpu_check.model_rows BUNDLE ROWS

A step's rows are the next tokens of one text, as drafts are. Logits of every row must be those of the CPU's steps
of one row with the weights' exact numbers; `--device cpu` rehearses. A row for each number of rows is appended to
ROWS. Exit code 0: as on the CPU; 1: something differs; 77: cannot run here, and the last line says why.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from bench.gpu_check.report import append
from bench.gpu_check.steps import NOT_HERE
from numpy.typing import NDArray

from h2o_runtime import Generator
from h2o_runtime.errors import H2OError
from h2o_runtime.execution.step_rows import StepRow
from h2o_runtime.limits import MOST_STEP_ROWS
from h2o_runtime.names import DeviceName
from h2o_runtime.policies.prefill import Full

COUNTS = (1, 2, 4, 8, 16)  # a GPU pads other steps to these
ERROR = 2e-2  # relative to the largest logit: float16 through all layers
REPEATS = 20
Ids = NDArray[np.int64]
Logits = NDArray[np.float32]


def steps(generator: Generator, ids: Ids, repeats: int = REPEATS) -> Iterator[tuple[int, float, Logits]]:
    """Behind all of `ids` but its last tokens: rows of a step; its milliseconds; logits [rows, vocab].

    Steps are recorded at first: the time is the median of the second half. No row stays in the session.
    """
    generator.reset()
    generator.prefill(ids[:-MOST_STEP_ROWS], Full())
    rows = [StepRow(int(token), generator.session) for token in ids[-MOST_STEP_ROWS:]]
    for count in COUNTS:
        times = []
        for _ in range(repeats):
            begin = time.perf_counter()
            logits = generator.loaded.forward.decode_rows(rows[:count])
            times.append(time.perf_counter() - begin)
        yield count, 1e3 * statistics.median(times[repeats // 2 :]), logits.copy()


def operator_of(generator: Generator) -> str | None:
    """What multiplies by integers on a GPU."""
    return getattr(generator.loaded.backend, "integer_product", None)


def one_by_one(generator: Generator, ids: Ids) -> Logits:
    """[16, vocab]"""
    generator.reset()
    generator.prefill(ids[:-MOST_STEP_ROWS], Full())
    return np.stack([generator.decode(int(token)).copy() for token in ids[-MOST_STEP_ROWS:]])


def compared(bundle: Path, device: DeviceName, n: int) -> Iterator[dict[str, Any]]:
    context = n + MOST_STEP_ROWS
    with Generator.load(bundle, device="cpu", dense_form="exact", context=context) as generator:
        ids = np.random.default_rng(4).integers(3, generator.model.vocab_size, n)
        truth = one_by_one(generator, ids)
    with Generator.load(bundle, device=device, dense_form="exact", context=context) as generator:
        for count, milliseconds, logits in steps(generator, ids):
            wanted = truth[:count]
            equal = int((logits.argmax(1) == wanted.argmax(1)).sum())
            error = float(np.abs(logits - wanted).max() / np.abs(wanted).max())
            row = {"bundle": bundle.name, "device": device, "n": n, "rows": count, "ms": milliseconds}
            yield row | {"operator": operator_of(generator), "tokens_equal": equal, "error": error}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("-n", "--tokens", type=int, default=1500, help="of the text")
    asked = parser.parse_args()
    same = True
    try:
        for row in compared(asked.bundle, asked.device, asked.tokens):
            print(row, flush=True)
            append(asked.rows, "model_rows", row)
            same &= row["error"] < ERROR
    except H2OError as error:
        print(error)
        return NOT_HERE
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
