"""Compares decode with and without drafts: quoting tasks over real documents, JSON to a schema, and free text.

    python -m bench.decode.lookup BUNDLE [--by lookup] [--threads 1] [--tokens 200] [--rounds 3] [--only NAME]
        [--temperature 0] [--wall]

--by: what drafts, as h2o-run's --speculate. Each task is answered with and without drafts in turn, in one process.
Prints milliseconds of processor time per token (median of the rounds), or of time that passes (--wall), their
ratio, and drafted and accepted tokens. Answers must be equal, token for token. Documents are files of this
repository.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from h2o_runtime import Sampling
from h2o_runtime.answers.completion import Completion
from h2o_runtime.answers.events import Prefilled
from h2o_runtime.answers.request import Prompt, Request
from h2o_runtime.names import SPECULATIONS, Speculation
from h2o_runtime.policies.prefill import Full
from h2o_runtime.text_model import TextModel
from h2o_server.answers.grammar import GrammarCompiler

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
ORDER = """On 3 March 2024 Mary Jones of 14 Harbour Street, Whitby, ordered 12 wool blankets and 3 brass lamps from
Northern Supplies. The order comes to 418 pounds and is paid by card. The carrier is Coastline, and the parcel is
expected on 9 March."""
KEYS = {
    "customer_full_name": {"type": "string"},
    "customer_delivery_address": {"type": "string"},
    "name_of_the_supplying_company": {"type": "string"},
    "number_of_wool_blankets_ordered": {"type": "integer"},
    "number_of_brass_lamps_ordered": {"type": "integer"},
    "total_amount_in_pounds": {"type": "integer"},
    "payment_method": {"enum": ["card", "invoice", "cash_on_delivery"]},
    "expected_delivery_date": {"type": "string"},
}
NOTES = {"title": {"type": "string"}, "notes": {"type": "string"}}


def all_of(members: dict[str, Any]) -> dict[str, Any]:
    """The schema of an object with all of these members."""
    closed = {"type": "object", "additionalProperties": False}
    return {"properties": members, "required": list(members)} | closed


@dataclass(frozen=True)
class Task:
    """A prompt, and the JSON schema of its answer."""

    text: str
    schema: dict[str, Any] | None = None


ARTICLE = {"name_of_the_article": {"type": "string"}, "number_ordered": {"type": "integer"}}
JSON = {
    "json: long keys": Task(f"{ORDER}\n\nGive the order as JSON.", all_of(KEYS)),
    "json: list": Task(
        f"{ORDER}\n\nGive the articles as JSON.",
        {"type": "array", "items": all_of(ARTICLE), "minItems": 2, "maxItems": 3},
    ),
    "json: long texts": Task("Write a story about a whale as JSON with a title and notes.", all_of(NOTES)),
}


def tasks() -> dict[str, Task]:
    """By name."""
    found = {}
    for name in TEXTS:
        paragraphs = [
            paragraph for paragraph in (ROOT / name).read_text().split("\n\n") if 300 < len(paragraph) < 1200
        ]
        found[f"quote: {name}"] = f"Repeat this text word for word:\n\n{paragraphs[0]}"
        found[f"quote: {name}, last"] = f"Repeat this text word for word:\n\n{paragraphs[-1]}"
    for name in CODE:
        text = (ROOT / name).read_text()[:2400]
        asked = "Rewrite this Python file with one change, self is called this, and give the whole file"
        found[f"code: {name}"] = f"{asked}:\n\n```python\n{text}\n```"
    return {name: Task(text) for name, text in (found | FREE).items()} | JSON


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("bundle")
    parser.add_argument("--by", choices=SPECULATIONS[:-1], default="lookup")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--wall", action="store_true")
    flags = parser.parse_args()
    sampling = Sampling(temperature=flags.temperature, seed=1)
    clock = time.perf_counter if flags.wall else time.process_time
    with TextModel.load(flags.bundle, context=4096, threads=flags.threads, device="cpu") as model:
        vocab_size = model.generator.model.vocab_size
        with closing(
            GrammarCompiler(Path(flags.bundle) / "tokenizer.json", vocab_size, model.end_ids)
        ) as compiler:
            for name, task in tasks().items():
                if flags.only in name:
                    measured = Measurement(model, compiler, task, flags.tokens, sampling, clock, flags.by)
                    found = measured.run(flags.rounds)
                    print(json.dumps({"task": name} | found), flush=True)


@dataclass(frozen=True)
class Measurement:
    """One task with and without drafts. tokens: most of the answer. clock: seconds."""

    model: TextModel
    compiler: GrammarCompiler
    task: Task
    tokens: int
    sampling: Sampling
    clock: Callable[[], float]
    by: Speculation

    def run(self, rounds: int) -> dict[str, Any]:
        prompt = self.model.chat_prompt([{"role": "user", "content": self.task.text}])
        answers: dict[Speculation, list[Completion]] = {self.by: [], "off": []}
        taken: dict[Speculation, list[float]] = {self.by: [], "off": []}
        for _ in range(rounds):
            for speculate, runs in answers.items():
                completion, seconds = self._answer(prompt, speculate)
                runs.append(completion)
                taken[speculate].append(1e3 * seconds / len(completion.tokens))
        on, off = (statistics.median(taken[name]) for name in answers)
        if len({run.tokens for runs in answers.values() for run in runs}) > 1:
            sys.exit(f"answers differ: {self.task.text[:60]!r}")
        timings = answers[self.by][0].timings
        return {
            "prompt": len(prompt.ids),
            "answer": timings.predicted_n,
            "off_ms": round(off, 2),
            f"{self.by}_ms": round(on, 2),
            "times": round(off / on, 2),
            "times_of_least": round(min(taken["off"]) / min(taken[self.by]), 2),
            "drafted": timings.draft_n,
            "accepted": timings.draft_n_accepted,
        }

    def _answer(self, prompt: Prompt, speculate: Speculation) -> tuple[Completion, float]:
        """The answer, and the seconds from its prompt's end on."""
        schema = self.task.schema
        grammar = (
            nullcontext() if schema is None else closing(self.compiler.json_schema(schema, field="schema"))
        )
        with grammar as constraint:
            # Read again each time, so that all answers start from the same logits.
            request = Request(
                prompt,
                self.tokens,
                Full(),
                self.sampling,
                reuse=False,
                speculate=speculate,
                constraint=constraint,
            )
            begin = 0.0
            for event in self.model.complete(request):
                if isinstance(event, Prefilled):
                    begin = self.clock()
                elif isinstance(event, Completion):
                    return event, self.clock() - begin
        raise AssertionError("an answer ends with its completion")


if __name__ == "__main__":
    main()
