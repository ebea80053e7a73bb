"""A question about a long document, answered with full attention and with chunked sparse prefill.

    python examples/demo.py BUNDLE [--lengths 2000,4000,8000,12000] [--rounds N] [--picture FILE.svg]

The document is documentation text with one fact planted near its end; the question asks for it. At each length all
ways of prefill run on the same bundle, in turns, and the time to first token of each is the median of its runs.
Each also predicts the text that follows the question: its perplexity says what sparse prefill loses.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from time_chart import Curve, bars, svg

from h2o_runtime import Generator
from h2o_runtime.policies.prefill import Full, PrefillPolicy, Query
from h2o_runtime.text import Tokenizer

TEXT = Path(__file__).parent / "tiny-llama" / "heldout.txt"
KEY, VALUE = "amber", "48213"
ANSWER_TOKENS, FOLLOWING = 8, 512


@dataclass
class Contestant:
    """One way of prefill, with what it answered, how long it took each time, and what it predicted, by length."""

    name: str
    policy: PrefillPolicy[Any]
    seconds: dict[int, list[float]] = field(default_factory=dict)
    answer: dict[int, str] = field(default_factory=dict)
    perplexity: dict[int, float] = field(default_factory=dict)

    def median(self, length: int) -> float:
        return statistics.median(self.seconds[length])


@dataclass(frozen=True)
class Question:
    """`prompt` ends with the question. `following` is the right answer and the text behind it."""

    prompt: list[int]
    following: list[int]

    @classmethod
    def about(cls, text: str, tokenizer: Tokenizer, length: int) -> Question:
        """About `length` tokens, with the fact `<<amber 48213>>` on a line of its own, nine tenths in."""
        ids, end = tokenizer.encode(text), length - 20  # the fact and the question have about 20 tokens
        document, rest = tokenizer.decode(ids[:end]), tokenizer.decode(ids[end : end + FOLLOWING])
        place = document.index("\n", len(document) * 9 // 10)
        document = f"{document[:place]}\n<<{KEY} {VALUE}>>{document[place:]}"
        return cls(
            tokenizer.encode(f"{document}\n<<{KEY}"), tokenizer.encode(f" {VALUE}>>\n{rest}")[:FOLLOWING]
        )


def ask(generator: Generator, tokenizer: Tokenizer, question: Question, contestant: Contestant) -> None:
    """Read the prompt into an empty cache, timed, and answer."""
    length = len(question.prompt)
    generator.reset()
    begin = time.perf_counter()
    logits = generator.prefill(question.prompt, policy=contestant.policy)
    token = int(np.argmax(logits))
    contestant.seconds.setdefault(length, []).append(time.perf_counter() - begin)
    answer = [token]
    while len(answer) < ANSWER_TOKENS:
        answer.append(int(np.argmax(generator.decode(answer[-1]))))
    contestant.answer[length] = tokenizer.decode(answer).split(">")[0].strip()


def predict(generator: Generator, question: Question, contestant: Contestant) -> None:
    """The perplexity of what follows the prompt, read with exact attention to what prefill has cached."""
    generator.reset()
    losses = [_loss(generator.prefill(question.prompt, policy=contestant.policy), question.following[0])]
    for rows, logits in generator.decode_given(question.following[:-1]):
        known = question.following[rows.start + 1 : rows.stop + 1]
        losses += [_loss(*pair) for pair in zip(logits, known, strict=True)]
    contestant.perplexity[len(question.prompt)] = math.exp(statistics.mean(losses))


def _loss(logits: Any, token: int) -> float:
    wide = logits.astype(np.float64) - logits.max()
    return float(np.log(np.exp(wide).sum()) - wide[token])


def table(contestants: Sequence[Contestant], length: int) -> Table:
    """What each answered and lost at one length."""
    found = Table("prefill", "time to first token", "answer", f"perplexity of the next {FOLLOWING} tokens")
    exact = contestants[0].perplexity[length]
    for one in contestants:
        change = f" ({one.perplexity[length] / exact - 1:+.1%})" if one is not contestants[0] else ""
        found.add_row(
            one.name,
            f"{one.median(length):.2f} s",
            one.answer[length],
            f"{one.perplexity[length]:.2f}{change}",
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Ask about a long document with and without sparse prefill.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument(
        "--lengths", default="2000,4000,8000,12000", help="tokens of the document, several with commas"
    )
    parser.add_argument(
        "--rounds", type=int, default=2, help="how often each way of prefill runs at each length"
    )
    parser.add_argument("--picture", type=Path, help="write time against length as an SVG file")
    given = parser.parse_args()
    lengths = [int(length) for length in given.lengths.split(",")]
    console = Console(highlight=False)
    text = TEXT.read_text(encoding="utf-8")
    tokenizer = Tokenizer.load(given.bundle)
    questions = [Question.about(text, tokenizer, length) for length in lengths]
    contestants = [
        Contestant("full attention", Full()),
        Contestant("sparse prefill", Query()),
    ]
    with Generator.load(given.bundle, context=max(lengths) + FOLLOWING) as generator:
        generator.prefill(questions[0].prompt)  # the first run takes memory, and does not count
        for question in questions:
            for _ in range(given.rounds):
                for contestant in contestants:
                    ask(generator, tokenizer, question, contestant)
        for contestant in contestants:
            predict(generator, questions[-1], contestant)
        executors = f"{generator.loaded.backend.name}, attention by {generator.spec.provider.name}"
    longest = len(questions[-1].prompt)
    curves = [Curve(one.name, {length: one.median(length) for length in one.seconds}) for one in contestants]
    console.print(
        f"Time to first token, medians of {given.rounds} runs in turns ({executors}):\n", soft_wrap=True
    )
    console.print(bars(curves))
    console.print(table(contestants, longest))
    full, sparse = (one.median(longest) for one in contestants)
    console.print(
        f"At {longest:,} tokens sparse prefill is {full / sparse:.1f} times as fast as full attention. The "
        f"document says {VALUE}.",
        soft_wrap=True,
    )
    if given.picture is not None:
        given.picture.parent.mkdir(parents=True, exist_ok=True)
        given.picture.write_text(svg(curves, "time to first token, s"), encoding="utf-8")
        console.print(f"picture: {given.picture}")


if __name__ == "__main__":
    main()
