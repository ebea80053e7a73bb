"""Compares decode with and without prompt lookup: quoting tasks over real documents, and free text.

    python -m bench.decode.lookup BUNDLE [--threads 1] [--tokens 200] [--rounds 3] [--only NAME] [--temperature 0]

Each task is answered with and without lookup in turn, in one process. Prints milliseconds of processor time
per token (median of the rounds), their ratio, and drafted and accepted tokens. Answers must be equal, token
for token. Documents are files of this repository.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from h2o_runtime import PrefillConfig, Sampling
from h2o_runtime.answers.events import Prefilled
from h2o_runtime.completion import Completion, Request, TextModel
from h2o_runtime.names import SPECULATIONS, Speculation

ROOT = Path(__file__).parents[2]
CODE = (
    "runtime/h2o_runtime/caches/pages.py",
    "runtime/h2o_runtime/sessions/session.py",
    "runtime/h2o_runtime/schedule.py",
)
TEXTS = ("docs/caches.md", "docs/algorithm.md", "docs/security.md", "docs/precision.md")
FREE = {
    "free: story": "Tell me a long story about a lighthouse keeper and a whale.",
    "free: essay": "Explain how photosynthesis works and why leaves are green, in several paragraphs.",
    "free: list": "What should I think of before I move to another country? Give reasons.",
    "free: letter": "Write a letter to a friend about a journey through the mountains.",
}


def tasks() -> dict[str, str]:
    """Prompts by name."""
    found = {}
    for name in TEXTS:
        paragraphs = [one for one in (ROOT / name).read_text().split("\n\n") if 300 < len(one) < 1200]
        found[f"quote: {name}"] = f"Repeat this text word for word:\n\n{paragraphs[0]}"
        found[f"quote: {name}, last"] = f"Repeat this text word for word:\n\n{paragraphs[-1]}"
    for name in CODE:
        text = (ROOT / name).read_text()[:2400]
        asked = "Rewrite this Python file with one change, self is called this, and give the whole file"
        found[f"code: {name}"] = f"{asked}:\n\n```python\n{text}\n```"
    return found | FREE


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("bundle")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--temperature", type=float, default=0.0)
    flags = parser.parse_args()
    sampling = Sampling(temperature=flags.temperature, seed=1)
    with TextModel.load(flags.bundle, context=4096, threads=flags.threads, device="cpu") as model:
        for name, text in tasks().items():
            if flags.only in name:
                found = measured(model, text, flags.tokens, flags.rounds, sampling)
                print(json.dumps({"task": name} | found), flush=True)


def measured(model: TextModel, text: str, tokens: int, rounds: int, sampling: Sampling) -> dict[str, Any]:
    prompt = model.chat_prompt([{"role": "user", "content": text}])
    answers: dict[Speculation, list[Completion]] = {name: [] for name in SPECULATIONS}
    taken: dict[Speculation, list[float]] = {name: [] for name in SPECULATIONS}
    for _ in range(rounds):
        for speculate, made in answers.items():
            config = PrefillConfig(policy="full")
            # Read again each time, so that all answers start from the same logits.
            request = Request(prompt, tokens, config, sampling, reuse=False, speculate=speculate)
            for event in model.complete(request):
                if isinstance(event, Prefilled):
                    begin = time.process_time()
                elif isinstance(event, Completion):
                    made.append(event)
                    taken[speculate].append(1e3 * (time.process_time() - begin) / len(event.tokens))
    lookup, off = (statistics.median(taken[name]) for name in SPECULATIONS)
    if len({one.text for made in answers.values() for one in made}) > 1:
        sys.exit(f"answers differ: {text[:60]!r}")
    timings = answers["lookup"][0].timings
    return {
        "prompt": len(prompt.ids),
        "answer": timings.predicted_n,
        "off_ms": round(off, 2),
        "lookup_ms": round(lookup, 2),
        "times": round(off / lookup, 2),
        "times_of_least": round(min(taken["off"]) / min(taken["lookup"]), 2),
        "drafted": timings.draft_n,
        "accepted": timings.draft_n_accepted,
    }


if __name__ == "__main__":
    main()
