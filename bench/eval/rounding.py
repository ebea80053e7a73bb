"""What `--compute dense_precision=bfloat16` loses on a bundle with float32 weights.

    python -m bench.eval.rounding BUNDLE [--texts 9] [--tokens 4096] [--threads 1] [--csv ROWS]

Reads the first texts of `h2o-eval --suite long`, with products in float32 and in bfloat16, and attention in float32
for both, under full attention. Each row is of one text: the increase of the perplexity from `--from` on, the KL
divergence of 256 predictions in nats, and how often the likeliest token is the same. Means have standard errors.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from statistics import mean, stdev

from h2o_cli.eval.metrics import counted, evenly, increase
from h2o_cli.eval.plan import SAMPLED
from h2o_cli.eval.readings import Reading, read
from h2o_cli.eval.suite import TEXTS
from h2o_cli.eval.texts import Document, from_sources
from h2o_runtime import Generator
from h2o_runtime.bundles.manifest import Manifest
from h2o_runtime.names import DensePrecision
from h2o_runtime.policies.prefill import Full
from h2o_runtime.text import Tokenizer

FULL = Full()


@dataclass(frozen=True)
class Row:
    text: str
    perplexity_increase: float
    divergence: float
    same_token: float


def measure(bundle: Path, documents: tuple[Document, ...], first: int, threads: int) -> Iterator[Row]:
    """One row a text, as they are measured."""
    context = max(len(document.ids) for document in documents)

    def generator(precision: DensePrecision) -> Generator:
        return Generator.load(
            bundle,
            context=context,
            threads=threads,
            device="cpu",
            dense_precision=precision,
            attention_precision="float32",
        )

    with generator("float32") as exact, generator("bfloat16") as rounded:
        for document in documents:
            sampled = evenly(first, len(document.ids), SAMPLED)
            truth, found = (read(each, document.ids, FULL, sampled) for each in (exact, rounded))
            yield _row(document.name, truth, found, first)


def _row(text: str, truth: Reading, found: Reading, first: int) -> Row:
    return Row(
        text,
        increase(counted(found.nll, first), counted(truth.nll, first)),
        float(found.divergence(truth).mean()),
        found.agreement(truth, first),
    )


def summary(found: list[Row]) -> str:
    """Means over the texts, with their standard errors."""

    def told(values: list[float], digits: int) -> str:
        error = stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
        return f"{mean(values):.{digits}f} ± {error:.{digits}f}"

    changes = told([100 * reading.perplexity_increase for reading in found], 4)
    divergence = told([reading.divergence for reading in found], 6)
    same = told([100 * reading.same_token for reading in found], 2)
    return f"{len(found)} texts, perplexity {changes} %, KL {divergence}, same token {same} %"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--texts", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=4096, help="of each text")
    parser.add_argument("--from", dest="first", type=int, default=1024, help="first position that counts")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--csv", type=Path)
    given = parser.parse_args()
    vocabulary = Manifest.read(given.bundle).model.vocab_size
    tokenizer = Tokenizer.load(given.bundle)
    documents = from_sources(TEXTS["report"], tokenizer, given.tokens, vocabulary, given.texts)
    found = []
    for row in measure(given.bundle, documents, given.first, given.threads):
        print(row, file=sys.stderr, flush=True)
        found.append(row)
    if given.csv:
        with given.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(field.name for field in fields(Row))
            writer.writerows(astuple(reading) for reading in found)
    print(summary(found))


if __name__ == "__main__":
    main()
