"""Prompts that need more of their past than votes find: a table, then much of it again, shuffled.

    python -m bench.eval.lookups BUNDLE --lines 250 --asked 130 'missed=1' 'missed=0.0025'
    python -m bench.eval.lookups BUNDLE --table words --lines 700 --asked 200 'missed=0.0025'

codes   two words and seven digits: the tokens of a line attend to those of one earlier line, so one vote finds it
words   two words of one token each: one token in four attends to a value, and nothing needed is beside it

Prints, under full attention and each setting, the mean loss of the repeated values, what the tiles missed, and
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

from h2o_cli.eval.metrics import losses
from h2o_cli.eval.suite import TEXTS
from h2o_cli.eval.texts import manual
from h2o_runtime import Generator
from h2o_runtime.policies.prefill import PREFILL
from h2o_runtime.text import Tokenizer


def codes(tokenizer: Tokenizer, lot: random.Random, lines: int) -> list[tuple[str, str]]:
    """Names and values; both as they are in the text, with the blanks before them."""
    words = manual_words()
    names = ["-".join(lot.sample(words, 2)) for _ in range(lines)]
    return [(name, f" {lot.randint(10**6, 10**7 - 1)}") for name in names]


def words(tokenizer: Tokenizer, lot: random.Random, lines: int) -> list[tuple[str, str]]:
    """As `codes`."""
    short = [f" {word}" for word in manual_words() if len(tokenizer.encode(f" {word}")) == 1]
    if len(short) < 2 * lines:
        raise SystemExit(
            f"{lines} lines need {2 * lines:,} words of one token, of {len(short):,}: lower --lines"
        )
    chosen = lot.sample(short, 2 * lines)
    return list(zip(chosen[:lines], chosen[lines:], strict=True))


def manual_words() -> list[str]:
    return sorted(set(re.findall(r"\b[a-z]{4,9}\b", manual())))


TABLES = {"codes": codes, "words": words}


def prompt(
    tokenizer: Tokenizer, table: str, before: int, lines: int, asked_lines: int, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Token ids [N], and which of them are repeated values. before: tokens of prose before the table."""
    lot = random.Random(seed)
    entries = TABLES[table](tokenizer, lot, lines)
    prose = TEXTS["tune"][0].text()
    ids = tokenizer.encode(prose[2300:])[:before]
    asked = [False] * before
    parts = [
        (f"Here is a table of {table}.\n" + "".join(f"{name}:{value}\n" for name, value in entries), False)
    ]
    parts.append((prose[:800] + f"\nNow the same {table}, asked for in another order.\n", False))
    for name, value in lot.sample(entries, asked_lines):
        parts += [(f"{name}:", False), (value, True), ("\n", False)]
    parts.append((prose[800:2300], False))  # so that no question is in the dense tail
    for text, is_value in parts:
        tokens = tokenizer.encode(text)
        ids += tokens
        asked += [is_value] * len(tokens)
    return np.array(ids, np.int64), np.array(asked)


def measure(generator: Generator, ids: NDArray[np.int64], asked: NDArray[np.bool_], settings: str) -> str:
    policy = PREFILL.read(settings, generator.bundle.manifest.prefill)
    nll, begin = np.empty(len(ids) - 1), time.process_time()
    for rows, logits in generator.each_logits(ids, policy):
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
    parser.add_argument("--table", choices=tuple(TABLES), default="codes")
    parser.add_argument("--before", type=int, default=0, help="tokens of prose before the table")
    parser.add_argument("--lines", type=int, default=250, help="lines of the table")
    parser.add_argument("--asked", type=int, default=130, help="lines that come again")
    parser.add_argument("--seed", type=int, default=1, help="of names, values, and their order")
    given = parser.parse_args()
    tokenizer = Tokenizer.load(given.bundle)
    ids, asked = prompt(tokenizer, given.table, given.before, given.lines, given.asked, given.seed)
    print(f"{len(ids):,} tokens, {asked.sum():,} of them asked for")
    with Generator.load(given.bundle, context=len(ids), device="cpu", threads=1) as generator:
        for settings in ("policy=full", *given.settings):
            print(measure(generator, ids, asked, settings), flush=True)


if __name__ == "__main__":
    main()
