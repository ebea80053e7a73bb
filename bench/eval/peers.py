"""A GGUF file as its bundles read it, beside llama.cpp and transformers: perplexity and greedy answers.

    python -m bench.eval.peers MODEL.gguf BUNDLE … [--threads 2] [--tokens 1024] [--answers 20] [--text FILE …]

Weights are those of the file for everyone. transformers has them as float32. llama.cpp multiplies with the file's
integers and rounds activations for that; with --float-copy it also reads the weights as float32.

Perplexity is of the first tokens of each text. Greedy answers of 32 tokens go on from places of these texts. Of two
readers' answers the first difference counts, because behind it they read different texts. It is a tie if the gap
between the two likeliest tokens is below the difference of both readers: what this gap changes by from one to the
other, at the places where they agree.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bench.eval.readers import Ids, LlamaCpp, Logits, Reader, Transformers, as_floats, bundle

from h2o_cli.eval.metrics import losses
from h2o_runtime.text import Tokenizer

ROOT = Path(__file__).parents[2]
TEXTS = tuple(ROOT / "docs" / name for name in ("algorithm.md", "security.md", "caches.md", "serving.md"))
ANSWER, PROMPT = 32, 64  # tokens
KEPT = 64  # of the likeliest tokens of a place
PERCENTILE = 95.0


@dataclass(frozen=True)
class Place:
    """What a reader says of one token of an answer: its likeliest tokens, best first, and their logits."""

    tokens: Ids
    logits: Logits

    @classmethod
    def of(cls, logits: Logits) -> Place:
        best = np.argpartition(logits, -KEPT)[-KEPT:]
        best = best[np.argsort(-logits[best], kind="stable")]
        return cls(best, logits[best].copy())

    @property
    def gap(self) -> float:
        return float(self.logits[0] - self.logits[1])

    def change(self, place: Place) -> float:
        """By what the gap between this reader's two likeliest tokens is another with the other reader."""
        theirs = dict(zip(place.tokens.tolist(), place.logits.tolist(), strict=True))
        first, second = (theirs.get(int(token), -math.inf) for token in self.tokens[:2])
        return abs(self.gap - float(first - second))


@dataclass(frozen=True)
class Found:
    """What one reader makes of all texts and prompts. nll: of each text's tokens, all in a row."""

    nll: float
    answers: tuple[tuple[Place, ...], ...]

    @property
    def perplexity(self) -> float:
        return math.exp(self.nll)


def read(reader: Reader, texts: Sequence[Ids], prompts: Sequence[Ids]) -> Found:
    return Found(
        float(np.concatenate([_losses(reader, ids) for ids in texts]).mean()),
        tuple(_answer(reader, prompt) for prompt in prompts),
    )


def _losses(reader: Reader, ids: Ids) -> Any:
    found, done = [], 0
    for logits in reader.every(ids):
        known = ids[done + 1 : done + 1 + len(logits)]
        found.append(losses(logits[: len(known)], known))
        done += len(logits)
    return np.concatenate(found)


def _answer(reader: Reader, prompt: Ids) -> tuple[Place, ...]:
    places = [Place.of(reader.begin(prompt))]
    while len(places) < ANSWER:
        places.append(Place.of(reader.step(int(places[-1].tokens[0]))))
    return tuple(places)


def compare(found: Found, truth: Found) -> dict[str, Any]:
    """Of the answers: how many are equal, the readers' difference, and the gap at each first difference."""
    changes, gaps = [], []
    for ours, theirs in zip(found.answers, truth.answers, strict=True):
        for here, there in zip(ours, theirs, strict=True):
            if here.tokens[0] != there.tokens[0]:
                gaps.append(here.gap)
                break
            changes.append(here.change(there))
    difference = float(np.percentile([change for change in changes if math.isfinite(change)], PERCENTILE))
    return {
        "equal": len(found.answers) - len(gaps),
        "answers": len(found.answers),
        "difference": round(difference, 5),
        "gaps": sorted(round(gap, 5) for gap in gaps),
        "ties": sum(gap < difference for gap in gaps),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("bundles", type=Path, nargs="+")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=1024, help="of each text")
    parser.add_argument("--answers", type=int, default=20)
    parser.add_argument("--float-copy", action="store_true", help="llama.cpp reads a float32 copy too")
    parser.add_argument("--text", type=Path, nargs="+", default=TEXTS)
    flags = parser.parse_args()
    tokenizer = Tokenizer.load(flags.bundles[0])
    whole = [file.read_text(encoding="utf-8") for file in flags.text]
    texts = [np.array(tokenizer.encode(text)[: flags.tokens]) for text in whole]
    prompts = _prompts(texts, flags.answers)
    context = max(map(len, texts)) + ANSWER

    found: dict[str, Found] = {}

    def take(name: str, reader: Reader) -> None:
        print(f"{name}: {sum(map(len, texts))} tokens, {len(prompts)} answers", file=sys.stderr)
        found[name] = read(reader, texts, prompts)

    take("transformers", Transformers(flags.file, flags.threads))
    peer = LlamaCpp(flags.file, context, flags.threads)
    alike = [peer.tokens(text)[: len(ids)] == ids.tolist() for text, ids in zip(whole, texts, strict=True)]
    print(json.dumps({"file": flags.file.name, "texts": len(texts), "that llama.cpp cuts alike": sum(alike)}))
    take("llama.cpp", peer)
    del peer
    if flags.float_copy:
        with tempfile.TemporaryDirectory(dir=flags.bundles[0].parent) as folder:
            as_floats(flags.file, copy := Path(folder) / "float32.gguf")
            take("llama.cpp, float32", LlamaCpp(copy, context, flags.threads))
    for folder in flags.bundles:
        with bundle(folder, context, flags.threads) as ours:
            take(folder.name, ours)
    for name, result in found.items():
        print(json.dumps(_row(name, result, found)))


def _prompts(texts: Sequence[Ids], count: int) -> list[Ids]:
    """Each begins as its text does, with whatever token that is, and has the tokens of another place."""
    each = -(-count // len(texts))
    rows = []
    for ids in texts:
        for start in np.linspace(1, len(ids) - PROMPT, each).astype(int):
            rows.append(np.concatenate([ids[:1], ids[start : start + PROMPT - 1]]))
    return rows[:count]


def _row(name: str, result: Found, found: dict[str, Found]) -> dict[str, Any]:
    row: dict[str, Any] = {"reader": name, "perplexity": round(result.perplexity, 5)}
    for peer in ("transformers", "llama.cpp", "llama.cpp, float32"):
        if peer != name and peer in found:
            more = 100 * (result.perplexity / found[peer].perplexity - 1)
            row[f"beside {peer}"] = {"perplexity, %": round(more, 4), **compare(result, found[peer])}
    return row


if __name__ == "__main__":
    main()
