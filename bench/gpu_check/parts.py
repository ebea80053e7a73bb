"""One part of the runtime on a GPU, against the CPU: python -m bench.gpu_check.parts PART BUNDLE ROWS

Greedy tokens behind a prompt that repeats itself must be those of the CPU with the weights' exact numbers: `plain`,
of a bundle with integer weights too; `offload` and `quest`, where the cache is on the host and decode sees pages;
`lookup`, where steps of several rows verify drafts. `perplexity` reads a text of the checkout instead. `--device
cpu` rehearses. One row is appended to ROWS. Exit code 0: as on the CPU; 1: something differs; 77: cannot run here,
and the last line says why.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bench.gpu_check.report import append
from bench.gpu_check.steps import NOT_HERE
from numpy.typing import NDArray

from h2o_runtime import Generator
from h2o_runtime.answers.events import TokenGenerated
from h2o_runtime.caches.offload import Offload
from h2o_runtime.errors import H2OError
from h2o_runtime.names import DenseChoice, DeviceName, Speculation
from h2o_runtime.policies.decode.quest import Quest
from h2o_runtime.policies.prefill import Full

REPO = Path(__file__).resolve().parents[2]
TEXT = REPO / "docs" / "algorithm.md"
REPEATED = 200  # tokens of the prompt before it begins again
PERPLEXITY_ERROR = 5e-3  # relative, of float16 and other orders of sums
Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Part:
    """`options` of Generator.load for a device and a folder that is removed later.

    same: whether the CPU has them too
    """

    options: Callable[[DeviceName, Path], dict[str, Any]]
    same: bool = False


def _offloaded(device: DeviceName, folder: Path) -> dict[str, Any]:
    return {"cache": Offload(file=str(folder / "rows") if device == "cpu" else "")}


PARTS = {
    "plain": Part(lambda device, folder: {"dense_form": "exact"}),
    "offload": Part(_offloaded),
    "quest": Part(lambda device, folder: {"decoding": Quest()}, same=True),
    "lookup": Part(lambda device, folder: {"speculate": "lookup"}),
}


def tokens_of(generator: Generator, ids: Ids, count: int, speculate: Speculation = "off") -> list[int]:
    """Greedy ones."""
    events = generator.generate(ids, count, Full(), speculate=speculate)
    return [event.sampled.token for event in events if isinstance(event, TokenGenerated)]


def compared(name: str, bundle: Path, device: DeviceName, n: int, count: int) -> dict[str, Any]:
    """Tokens of a part on the device and on the CPU."""
    part = PARTS[name]
    with tempfile.TemporaryDirectory() as folder:
        options = part.options(device, Path(folder))
        on_cpu = part.options("cpu", Path(folder)) if part.same else {}
        speculate = options.pop("speculate", "off")
        context = n + count + 16
        with Generator.load(bundle, device=device, context=context, **options) as generator:
            ids = np.random.default_rng(3).integers(3, generator.model.vocab_size, REPEATED)
            ids = np.resize(ids, n)
            begin = time.perf_counter()
            found = tokens_of(generator, ids, count, speculate)
            seconds, drafted = time.perf_counter() - begin, generator.drafts.drafted
        with Generator.load(bundle, device="cpu", dense_form="exact", context=context, **on_cpu) as generator:
            truth = tokens_of(generator, ids, count)
    row = {"part": name, "bundle": bundle.name, "device": device, "n": n, "tokens": len(found)}
    equal = sum(ours == theirs for ours, theirs in zip(found, truth, strict=True))
    return row | {"tokens_equal": equal, "seconds": seconds, "drafted": drafted}


def perplexities(bundle: Path, device: DeviceName, n: int) -> dict[str, Any]:
    """Of the first `n` tokens of a text, on the device and on the CPU."""
    from h2o_runtime.text_model import TextModel

    found = []
    places: tuple[tuple[DeviceName, DenseChoice], ...] = ((device, "auto"), ("cpu", "exact"))
    for where, form in places:
        with TextModel.load(bundle, device=where, dense_form=form, context=n + 16) as model:
            ids = np.array(model.tokenizer.encode(TEXT.read_text(encoding="utf-8"))[:n])
            found.append(math.exp(-float(model.generator.logprobs(ids, Full()).mean(dtype=np.float64))))
    row = {"part": "perplexity", "bundle": bundle.name, "device": device, "n": len(ids)}
    return row | {"perplexity": found[0], "on_cpu": found[1]}


def as_on_the_cpu(row: dict[str, Any]) -> bool:
    if row["part"] == "perplexity":
        return abs(float(row["perplexity"] / row["on_cpu"]) - 1) < PERPLEXITY_ERROR
    drafted = row["part"] != "lookup" or row["drafted"] > 0
    return bool(row["tokens_equal"] == row["tokens"] > 0 and drafted)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("part", choices=(*PARTS, "perplexity"))
    parser.add_argument("bundle", type=Path)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("-n", "--tokens", type=int, default=1500, help="length of the prompt, or of the text")
    parser.add_argument("--count", type=int, default=48, help="tokens behind the prompt")
    asked = parser.parse_args()
    try:
        if asked.part == "perplexity":
            row = perplexities(asked.bundle, asked.device, asked.tokens)
        else:
            row = compared(asked.part, asked.bundle, asked.device, asked.tokens, asked.count)
    except H2OError as error:
        print(error)
        return NOT_HERE
    print(row)
    append(asked.rows, "parts", row)
    return 0 if as_on_the_cpu(row) else 1


if __name__ == "__main__":
    sys.exit(main())
