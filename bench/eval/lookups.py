"""A prompt that needs more of its past than votes find: a table of codes, then most of them again, shuffled.

    python -m bench.eval.lookups BUNDLE --lines 250 --asked 130 'score_missed=1' 'score_missed=0.008' 'heavy=auto'

Prints, under full attention and each setting, the mean loss of the repeated codes, what the tiles missed, and
processor seconds. The text between is Python's manual.
"""

from __future__ import annotations

import argparse
import random
import re
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from h2o_cli.eval.contestants import parse_settings
from h2o_cli.eval.metrics import losses
from h2o_cli.eval.suite import TEXTS
from h2o_cli.eval.texts import manual
from h2o_runtime import Generator, PrefillConfig
from h2o_runtime.text import Tokenizer

SEED = 1


def prompt(tokenizer: Tokenizer, lines: int, asked_lines: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Token ids [N], and which of them are repeated codes."""
    lot = random.Random(SEED)
    words = sorted(set(re.findall(r"\b[a-z]{4,9}\b", manual())))
    names = ["-".join(lot.sample(words, 2)) for _ in range(lines)]
    codes = [str(lot.randint(10**6, 10**7 - 1)) for _ in names]
    prose = TEXTS["tune"][0].text()
    table = "".join(f"{name}: {code}\n" for name, code in zip(names, codes, strict=True))
    parts = [("Here is a table of codes.\n" + table, False)]
    parts.append((prose[:800] + "\nNow the same codes, asked for in another order.\n", False))
    for index in lot.sample(range(lines), asked_lines):
        parts += [(f"{names[index]}:", False), (f" {codes[index]}", True), ("\n", False)]
    parts.append((prose[800:2300], False))  # so that no question is in the dense tail
    ids, asked = [], []
    for text, is_code in parts:
        own = tokenizer.encode(text)
        ids += own
        asked += [is_code] * len(own)
    return np.array(ids, np.int64), np.array(asked)


def measure(generator: Generator, ids: NDArray[np.int64], asked: NDArray[np.bool_], settings: str) -> str:
    config = PrefillConfig(**parse_settings(settings))
    nll, begin = np.empty(len(ids) - 1), time.process_time()
    for rows, logits in generator.each_logits(ids, config):
        known = ids[rows.start + 1 : rows.stop + 1]
        nll[rows.start : rows.start + len(known)] = losses(logits[: len(known)], known)
    seconds, seen = time.process_time() - begin, generator.seen()
    told = (
        ""
        if seen is None
        else f"  missed {seen.missed:.4f}, most {seen.most_missed:.4f}, widened {seen.widened:.1%}"
    )
    return f"{settings:<32} loss {nll[asked[1:]].mean():.4f}  {seconds:.1f} s{told}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundle", type=Path)
    parser.add_argument("settings", nargs="+", help="NAME=VALUE …")
    parser.add_argument("--lines", type=int, default=250, help="codes in the table")
    parser.add_argument("--asked", type=int, default=130, help="codes that come again")
    given = parser.parse_args()
    ids, asked = prompt(Tokenizer.load(given.bundle), given.lines, given.asked)
    print(f"{len(ids):,} tokens, {asked.sum():,} of them asked for")
    with Generator.load(given.bundle, context=len(ids), device="cpu", threads=1) as generator:
        for settings in ("policy=full", *given.settings):
            print(measure(generator, ids, asked, settings), flush=True)


if __name__ == "__main__":
    main()
