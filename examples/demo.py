"""A question about a long document, answered with full attention and with chunked sparse prefill.

    python examples/demo.py BUNDLE [--characters N] [--runs N]

The document is documentation text with one fact planted near its end; the question asks for it. Both ways of
prefill run on the same bundle, in turns, and the time to first token of each is the median of its runs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from h2o_runtime import Generator
from h2o_runtime.answers.events import TokenGenerated
from h2o_runtime.policies.prefill import Full, PrefillPolicy, Query
from h2o_runtime.text import Tokenizer

TEXT = Path(__file__).parent / "tiny-llama" / "heldout.txt"
KEY, VALUE = "harbor", "59317"


@dataclass
class Contestant:
    """One way of prefill, with what it answered and how long it took each time."""

    name: str
    policy: PrefillPolicy[Any]
    answer: str = ""
    seconds: list[float] = field(default_factory=list)


def document(characters: int) -> str:
    """Held-out text with the fact `<<harbor 59317>>` on a line of its own, nine tenths in."""
    text = TEXT.read_text(encoding="utf-8")[:characters]
    place = text.index("\n", len(text) * 9 // 10)
    return f"{text[:place]}\n<<{KEY} {VALUE}>>{text[place:]}"


def run(generator: Generator, tokenizer: Tokenizer, prompt: list[int], contestant: Contestant) -> None:
    """Answer from an empty cache; records the time to the first token."""
    generator.reset()
    answer: list[int] = []
    begin = time.perf_counter()
    for event in generator.generate(prompt, max_new_tokens=8, policy=contestant.policy):
        if isinstance(event, TokenGenerated):
            if not answer:
                contestant.seconds.append(time.perf_counter() - begin)
            answer.append(event.sampled.token)
    contestant.answer = tokenizer.decode(answer).split(">")[0].strip()


def main() -> None:
    parser = argparse.ArgumentParser(description="Ask about a long document with and without sparse prefill.")
    parser.add_argument("bundle", type=Path)
    # The default is more than 4,096 tokens of the example model's tokenizer.
    parser.add_argument("--characters", type=int, default=15_000, help="length of the document")
    parser.add_argument("--runs", type=int, default=3, help="how often each way of prefill runs")
    given = parser.parse_args()
    console = Console()
    tokenizer = Tokenizer.load(given.bundle)
    question = f"\n<<{KEY}"
    prompt = tokenizer.encode(document(given.characters) + question)
    console.print(f"document: {len(prompt):,} tokens; question: {question.strip()} …", highlight=False)
    contestants = [
        Contestant("full attention", Full()),
        Contestant("sparse prefill", Query()),
    ]
    with Generator.load(given.bundle) as generator:
        for _ in range(given.runs):
            for contestant in contestants:
                run(generator, tokenizer, prompt, contestant)
        executors = f"{generator.loaded.backend.name}, attention by {generator.spec.provider.name}"
    # A line of its own, not the table's title: that would be wrapped to the table's width.
    console.print(f"medians of {given.runs} runs in turns; {executors}", highlight=False)
    table = Table("prefill", "time to first token", "answer")
    for contestant in contestants:
        table.add_row(contestant.name, f"{statistics.median(contestant.seconds):.3f} s", contestant.answer)
    console.print(table)
    full, sparse = (statistics.median(contestant.seconds) for contestant in contestants)
    console.print(
        f"sparse prefill took {sparse / full:.0%} of the time; the document says {VALUE}", highlight=False
    )


if __name__ == "__main__":
    main()
