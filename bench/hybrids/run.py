"""Prefill and decode of hybrids beside llama.cpp: few layers attend to everything, the others keep a state.

    python -m bench.hybrids.run FOLDER --csv FILE [--llama PYTHON] [--shapes Granite-4-H-350M …]
        [--lengths 1024 4096] [--steps 32] [--rounds 3] [--threads 2]

Makes random models of real shapes in FOLDER, cut to a few layers (`shapes.py`), and measures those that are there
again. PYTHON is one that has xllamacpp; without it llama.cpp is left out. Everyone has the same integers, and takes
turns; a different one begins each round. Prints machine and versions, then a Markdown table of what the CSV holds:
medians of the rounds, and the median of the ratios to h2o within rounds.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import numpy as np
from bench.hybrids.contestants import Contestant, LlamaCpp, Ours, Turn, Unavailable
from bench.hybrids.shapes import SHAPES, VOCAB, make

from h2o_cli.bench.machine import describe
from h2o_runtime import Generator
from h2o_runtime.policies.prefill import Full, Query

H2O, FULL, LLAMA = "h2o", "full", "llama.cpp"


@dataclass(frozen=True)
class Row:
    """A contestant's times at one length: of prompts, or of a step behind one."""

    model: str
    layers: int
    attending: int
    mode: str  # prefill or decode
    length: int
    name: str
    rounds: int
    median_s: float
    min_s: float
    max_s: float
    h2o_speedup: float  # median over rounds of its time divided by h2o's


def main() -> None:
    flags = arguments()
    print(json.dumps(describe() | {"threads": flags.threads} | versions()), flush=True)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: flags.threads])
    made = {name: make(flags.folder, name) for name in flags.shapes}
    rows: list[Row] = []
    for name, (file, bundle) in made.items():
        rows += measured(name, file, bundle, flags)
        with flags.csv.open("w", newline="") as opened:
            writer = csv.DictWriter(opened, list(asdict(rows[0])), lineterminator="\n")
            writer.writeheader()
            writer.writerows(asdict(row) for row in rows)
    print("\n".join(table(rows)))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--csv", type=Path, required=True)
    parser.add_argument("--llama", type=Path, metavar="PYTHON")
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096])
    for name, default in (("steps", 32), ("rounds", 3), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()


def versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in ("onnxruntime", "transformers", "gguf")}


def measured(name: str, file: Path, bundle: Path, flags: argparse.Namespace) -> Iterator[Row]:
    context = max(flags.lengths) + flags.steps + 1
    with (
        Generator.load(bundle, context=context, threads=flags.threads, device="cpu") as generator,
        joined(file, context, flags) as contestants,
    ):
        contestants |= {H2O: Ours(generator, Query()), FULL: Ours(generator, Full())}
        ids = np.random.default_rng(flags.rounds).integers(2, VOCAB, min(flags.lengths))
        told = {who: one.first(ids) for who, one in contestants.items()}  # not counted
        print(json.dumps({"model": name, "first tokens": told}), flush=True)
        layers = generator.model.layers, generator.model.under_policies.layers
        for length in flags.lengths:
            turns = rounds(contestants, length, flags.steps, flags.rounds)
            for mode in ("prefill", "decode"):
                for who in (H2O, FULL, LLAMA):
                    if who in turns and (mode, who) != ("decode", FULL):  # both policies decode alike
                        yield Row(name, *layers, mode, length, who, flags.rounds, *summed(turns, who, mode))


@contextmanager
def joined(file: Path, context: int, flags: argparse.Namespace) -> Iterator[dict[str, Contestant]]:
    """llama.cpp, if it can take part."""
    if flags.llama is None:
        print("llama.cpp is left out: --llama names no Python that has xllamacpp", file=sys.stderr)
        yield {}
        return
    try:
        peer = LlamaCpp(flags.llama, file, context, flags.threads)
    except Unavailable as error:
        print(f"llama.cpp is left out of {file.parent.name}: {error}", file=sys.stderr)
        yield {}
        return
    print(json.dumps({"xllamacpp": peer.version}), flush=True)
    try:
        yield {LLAMA: peer}
    finally:
        peer.close()


def rounds(contestants: dict[str, Contestant], length: int, steps: int, count: int) -> dict[str, list[Turn]]:
    turns: dict[str, list[Turn]] = {who: [] for who in contestants}
    order = list(contestants)
    for number in range(count):
        ids = np.random.default_rng(number).integers(2, VOCAB, length)
        for who in order:
            turns[who].append(contestants[who].turn(ids, steps))
            print(json.dumps({"length": length, "name": who, **asdict(turns[who][-1])}), flush=True)
        order.append(order.pop(0))
    return turns


def summed(turns: dict[str, list[Turn]], who: str, mode: str) -> Iterator[float]:
    """Median, least and most seconds, and the ratio to h2o's."""

    def seconds(one: str) -> list[float]:
        return [turn.prompt_s if mode == "prefill" else turn.step_s for turn in turns[one]]

    own, leading = seconds(who), seconds(H2O)
    ratio = statistics.median(mine / ours for mine, ours in zip(own, leading, strict=True))
    yield from (round(one, 6) for one in (statistics.median(own), min(own), max(own), ratio))


def table(rows: list[Row]) -> Iterator[str]:
    """Markdown: seconds of a prompt and milliseconds of a step, in brackets the ratio to h2o."""
    found = {(row.model, row.length, row.mode, row.name): row for row in rows}

    def cell(row: Row | None) -> str:
        if row is None:
            return ""
        text = f"{row.median_s:.2f}" if row.mode == "prefill" else f"{1e3 * row.median_s:.1f}"
        return text if row.name == H2O else f"{text} ({row.h2o_speedup:.2f})"

    yield "| model | attending layers | tokens | h2o, s | full, s | llama.cpp, s | step, ms | llama.cpp, ms |"
    yield f"|{8 * '---|'}"
    for model, length in dict.fromkeys((row.model, row.length) for row in rows):
        head = found[model, length, "prefill", H2O]
        cells = [cell(found.get((model, length, "prefill", who))) for who in (H2O, FULL, LLAMA)]
        cells += [cell(found.get((model, length, "decode", who))) for who in (H2O, LLAMA)]
        yield f"| {model} | {head.attending} of {head.layers} | {length:,} | {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
