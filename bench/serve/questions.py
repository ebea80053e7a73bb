"""Many questions on one document, each the beginning of the same prompt with another end.

    python -m bench.serve.questions BUNDLE [--tokens 8000] [--threads 2] [--policy h2o] [--cache paged --pool 512]

In turns, in one process: the question under the rule, under full attention, and under the rule in a model that
remembers nothing. `beyond` is how many tokens were run besides the question. `tails` is with how many different
tiles the dense tails begin: another `--tokens` may change it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from h2o_runtime.answers.completion import Completion
from h2o_runtime.answers.request import Prompt, Request
from h2o_runtime.answers.sampling import Sampling
from h2o_runtime.caches import Contiguous, Paged
from h2o_runtime.policies.prefill import PREFILL, Full, PrefillPolicy, Query
from h2o_runtime.text_model import TextModel

QUESTIONS = (
    "Who is this for?",
    "What is a chunk?",
    "Which score rules are there, and what does each of them cost?",
    "How does the server treat a client that leaves before its answer is complete?",
    "What is the dense tail?",
    "Name three row formats of the cache.",
    "When does the runtime go back to a chunk boundary, and why does it not keep the rows that it has?",
    "How are weights of four bits stored?",
    "What is a memory set?",
    "Which of the flags change an answer, and which of them change only its speed?",
    "How large is the local window by default?",
    "Does decode see every key?",
    "What happens when the disk is full while a conversation is written into the folder of the cache?",
    "What is needed to build the CUDA kernels?",
    "How many tokens does a page have?",
    "Which models are read?",
    "What does the guard report, and what can be done when a prompt was not read well?",
    "Where are measured results kept?",
    "How is an answer stopped?",
    "What does a tile do that a chunk does not do?",
)


@dataclass(frozen=True)
class Asked:
    """One answer: seconds to its first token, tokens that were run, and its text."""

    seconds: float
    run: int
    text: str


def ask(model: TextModel, ids: Sequence[int], prefill: PrefillPolicy[Any], reuse: bool = True) -> Asked:
    """The answer of 16 tokens. Seconds end when the prompt is read."""
    request = Request(
        Prompt(tuple(ids)),
        16,
        prefill,
        Sampling(temperature=0.0),
        ignore_eos=True,
        reuse=reuse,
        speculate="off",
    )
    begin = time.perf_counter()
    events = model.complete(request)
    next(events)
    seconds = time.perf_counter() - begin
    *_, last = events
    assert isinstance(last, Completion)
    return Asked(seconds, last.timings.prompt_n, last.text)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("bundle")
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--policy", default="h2o")
    parser.add_argument("--cache", choices=["contiguous", "paged"], default="contiguous")
    parser.add_argument("--pool", type=int, default=0, help="MiB for conversations that wait")
    flags = parser.parse_args()
    cache = Paged() if flags.cache == "paged" else Contiguous()
    full = Full()
    settings = {
        "context": flags.tokens + 64,
        "threads": flags.threads,
        "device": "cpu",
        "cache": cache,
        "pool_bytes": flags.pool << 20,
    }
    with (
        TextModel.load(flags.bundle, **settings) as ruled,
        TextModel.load(flags.bundle, **settings) as dense,
        TextModel.load(flags.bundle, **settings) as fresh,
    ):
        rule = PREFILL.read(flags.policy, ruled.generator.bundle.manifest.prefill)
        tiles = rule if isinstance(rule, Query) else Query()
        pages = sorted((Path(__file__).parents[2] / "docs").glob("*.md"))
        text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
        ends = [ruled.tokenizer.encode(f"\n\nQuestion: {each}\nAnswer:") for each in QUESTIONS]
        longest = max(map(len, ends))
        ids = ruled.tokenizer.encode(text)[: flags.tokens - longest]
        rows = []
        for end in ends:
            prompt = [*ids, *end]
            ours, theirs = ask(ruled, prompt, rule), ask(dense, prompt, full)
            again = ask(fresh, prompt, rule, reuse=False)
            rows.append(
                (ours.run - len(end), ours.seconds / theirs.seconds, ours.seconds, ours.text == again.text)
            )
    later = rows[1:]
    print(
        json.dumps(
            {
                "document": len(ids),
                "tails": len({(len(ids) + len(end) - tiles.dense_tail) // tiles.tile for end in ends}),
                "first_seconds": rows[0][2],
                "beyond": sorted({row[0] for row in later}),
                "seconds": median(row[2] for row in later),
                "of_full": {"median": median(row[1] for row in later), "worst": max(row[1] for row in later)},
                "answers_equal": sum(row[3] for row in rows),
                "answers": len(rows),
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
