"""Tasks whose answer is somewhere in a long prompt, in RULER's style: needles, chains, counts.

The tasks are those of RULER (Hsieh et al., 2024, "RULER: What's the Real Context Size of Your Long-Context
Language Models?"), rewritten for prompts of an exact number of tokens, without downloads.
"""

from __future__ import annotations

import itertools
import random
import re
import string
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from h2o_cli.eval.chat_frame import ChatFrame
from h2o_cli.eval.readings import IntArray
from h2o_cli.eval.texts import manual
from h2o_runtime import Generator
from h2o_runtime.errors import ConfigError
from h2o_runtime.policies.prefill import PrefillPolicy
from h2o_runtime.text import Tokenizer

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n"
NEEDLE = "One of the special magic {kind} for {key} is: {value}.\n"
QUIZ = (
    "A special magic {kind} is hidden within the following text. Make sure to memorize it. I will quiz you about "
    "the {kind} afterwards.\n"
)
QUIZ_OF_MANY = (
    "Some special magic {kind}s are hidden within the following text. Make sure to memorize them. I will quiz you "
    "about the {kind}s afterwards.\n"
)
QUESTION = "\nWhat is the special magic {kind} for {key} mentioned in the provided text?"
ANSWER = "The special magic {kind} for {key} mentioned in the provided text is"

Question = Literal["end", "middle", "first"]  # where a needle's question stands


@dataclass(frozen=True)
class Sample:
    """ids      int64 [N], the prompt
    answers  texts that the answer has to contain
    tokens   most of the answer
    """

    ids: IntArray
    answers: tuple[str, ...]
    tokens: int


def score(
    generator: Generator,
    tokenizer: Tokenizer,
    sample: Sample,
    policy: PrefillPolicy[Any],
    reuse: bool = False,
) -> float:
    """Share of the expected answers in the model's greedy answer. reuse: see `answer`."""
    said = answer(generator, tokenizer, sample.ids, policy, sample.tokens, reuse=reuse)
    return found(said, sample.answers)


def found(said: str, answers: Sequence[str]) -> float:
    return sum(answer.lower() in said.lower() for answer in answers) / len(answers)


def answer(
    generator: Generator,
    tokenizer: Tokenizer,
    ids: IntArray,
    policy: PrefillPolicy[Any],
    tokens: int,
    reuse: bool = False,
) -> str:
    """The most likely tokens after a prompt, at most `tokens`, up to the end of the answer.

    reuse: keep what the cache has of the prompt; the answer is that of a fresh run.
    """
    logits: Any = generator.prefill(ids, policy, reuse=reuse)
    said: list[int] = []
    while True:
        token = int(np.argmax(logits))
        if token in tokenizer.eos_ids:
            break
        said.append(token)
        if len(said) == tokens or generator.length >= generator.context:
            break
        logits = generator.decode(token)
    return tokenizer.decode(said)


class TaskMaker:
    """Samples of tasks for one tokenizer; the same seed gives the same sample."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        vocabulary: int,
        frame: ChatFrame,
    ) -> None:
        """frame: around every prompt."""
        self._tokenizer, self._vocabulary, self._frame = tokenizer, vocabulary, frame
        self._haystack_text = manual()
        self._haystack: IntArray | None = None
        self._words = sorted(set(re.findall(r"\b[a-z]{5,10}\b", manual())))

    def needles(self, length: int, depths: Sequence[float], seed: int) -> list[Sample]:
        """A fact at each of `depths` (0 to 1) of one document, and for each a prompt that asks for it behind the
        document. The longest prompt has `length` tokens.
        """
        lot = random.Random(seed)
        facts = [self._fact(lot) for _ in depths]
        head = self._begin(QUIZ_OF_MANY.format(**facts[0]))
        hidden = [self._encode(NEEDLE.format(**fact)) for fact in facts]
        asked = [self._ask(QUESTION.format(**fact), ANSWER.format(**fact)) for fact in facts]
        room = _room(length, [head, *hidden, max(asked, key=len)])
        text = self._document(room, lot)
        places = [round(depth * room) for depth in depths]
        document, done = [head], 0
        for i in sorted(range(len(places)), key=places.__getitem__):
            document += [text[done : places[i]], hidden[i]]
            done = places[i]
        document.append(text[done:])
        return [
            Sample(np.concatenate([*document, question]), (fact["value"],), 16)
            for fact, question in zip(facts, asked, strict=True)
        ]

    def needle(self, length: int, depth: float, seed: int, middle: bool) -> Sample:
        """One fact in a document, asked for in the middle of the prompt or at its beginning; only the first words
        of the answer are at the end. depth: 0 to 1, of the text before a question in the middle, otherwise of all.
        """
        lot = random.Random(seed)
        fact = self._fact(lot)
        head, needle = self._begin(QUIZ.format(**fact)), self._encode(NEEDLE.format(**fact))
        question, last = self._encode(QUESTION.format(**fact)), self._ask("", ANSWER.format(**fact))
        room = _room(length, [head, needle, question, last])
        text = self._document(room, lot)
        before = room // 2 if middle else 0  # the question
        place = round(depth * (before or room))
        segments = [head, text[:place], needle, text[place:before], question, text[before:], last]
        if not middle:
            segments = [head, question, text[:place], needle, text[place:], last]
        return Sample(np.concatenate(segments), (fact["value"],), 16)

    def make(self, name: str, length: int, seed: int) -> Sample:
        """A sample of the task `name`, of at most `length` tokens and at most one line less."""
        return TASKS[name](self, length, random.Random(f"{name} {seed}"))

    def niah(self, length: int, lot: random.Random, many: bool, ids: bool) -> Sample:
        """A needle among noise, or among others of its kind; numbers under words, or ids under ids."""

        def fact() -> dict[str, str]:
            return {"kind": "uuid", "key": _uuid(lot), "value": _uuid(lot)} if ids else self._fact(lot)

        def lines() -> Iterator[str]:
            while True:
                yield NEEDLE.format(**fact()) if many else NOISE

        asked = fact()
        prompt = self._around(
            QUIZ.format(**asked),
            lines(),
            [NEEDLE.format(**asked)],
            QUESTION.format(**asked),
            ANSWER.format(**asked),
            length,
            lot,
        )
        return Sample(prompt, (asked["value"],), 48 if ids else 16)

    def tracking(self, length: int, lot: random.Random) -> Sample:
        """Variables that are assigned each other's value, in a chain of four steps among noise."""
        names = ["".join(lot.choices(string.ascii_uppercase, k=5)) for _ in range(5)]
        value = str(lot.randint(10000, 99999))
        chain = [f"VAR {names[0]} = {value}\n"]
        chain += [f"VAR {later} = VAR {name}\n" for name, later in itertools.pairwise(names)]
        prompt = self._around(
            "Memorize and track the chain of variable assignment hidden in the following text.\n\n",
            _repeat(NOISE),
            chain,
            f"\nQuestion: Find all variables that are assigned the value {value} in the text above.",
            f"Answer: According to the chain of variable assignment in the text above, 5 variables are assigned "
            f"the value {value}, they are:",
            length,
            lot,
        )
        return Sample(prompt, tuple(names), 40)

    def common_words(self, length: int, lot: random.Random) -> Sample:
        """Ten frequent words in a list, among rare ones."""
        words = lot.sample(self._words, len(self._words))
        common, rest = words[:10], words[10:]
        per_word = 4.5  # approximate tokens of a numbered word; only sets how often each occurs
        often = max(round(length / per_word / 20), 2)
        seldom = max(often // 10, 1)

        def numbered() -> list[str]:
            others = max(round((length / per_word - 10 * often) / seldom), 1)
            listed = [word for word in common for _ in range(often)]
            listed += [rest[index % len(rest)] for index in range(others) for _ in range(seldom)]
            lot.shuffle(listed)
            return [f"{number}. {word} " for number, word in enumerate(listed, 1)]

        prompt = self._around(
            "Below is a numbered list of words. In these words, some appear more often than others. Memorize the "
            "ones that appear most often.\n",
            iter(numbered()),
            [],
            "\nQuestion: What are the 10 most common words in the above list?",
            "Answer: The top 10 words that appear most often in the list are:",
            length,
            lot,
        )
        return Sample(prompt, tuple(common), 60)

    def frequent_words(self, length: int, lot: random.Random) -> Sample:
        """Made-up words with frequencies by Zipf's law; the three most frequent are asked for."""
        coded = sorted({"".join(lot.choices(string.ascii_lowercase, k=6)) for _ in range(500)})
        lot.shuffle(coded)
        weights = [1 / rank**2 for rank in range(1, len(coded) + 1)]

        def lines() -> Iterator[str]:
            while True:
                yield " ".join([*lot.choices(coded, weights, k=8), "... "])

        prompt = self._around(
            "Read the following coded text and track the frequency of each coded word. Find the three most "
            "frequently appeared coded words. ",
            lines(),
            [],
            "\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are the three most "
            "frequently appeared words in the above coded text?",
            "Answer: According to the coded text above, the three most frequently appeared words are:",
            length,
            lot,
        )
        return Sample(prompt, tuple(coded[:3]), 40)

    def _around(
        self,
        head: str,
        lines: Iterator[str],
        needles: Sequence[str],
        question: str,
        answer: str,
        length: int,
        lot: random.Random,
    ) -> IntArray:
        """head, as many lines as fit, with the needles in order among them, question, start of the answer."""
        first, last = self._begin(head), self._ask(question, answer)
        hidden = [self._encode(needle) for needle in needles]
        room = _room(length, [first, last, *hidden])
        body: list[IntArray] = []
        for line in lines:
            ids = self._encode(line)
            if len(ids) > room:
                break
            body.append(ids)
            room -= len(ids)
        places = sorted(lot.randint(0, len(body)) for _ in hidden)
        for place, ids in reversed(list(zip(places, hidden, strict=True))):
            body.insert(place, ids)
        return np.concatenate([first, *body, last])

    def _document(self, tokens: int, lot: random.Random) -> IntArray:
        if self._haystack is None:
            self._haystack = self._encode(self._haystack_text)
        text = self._haystack
        if len(text) < tokens:
            text = np.tile(text, -(-tokens // len(text)))
        start = lot.randint(0, len(text) - tokens)
        return text[start : start + tokens]

    def _begin(self, text: str) -> IntArray:
        """The beginning of a prompt. A template writes the special tokens itself."""
        before = self._frame.before
        return self._encode(before + text, add_special_tokens=not before)

    def _ask(self, question: str, answer: str) -> IntArray:
        """The end of a prompt: of the question, and of the answer its beginning."""
        return self._encode(question + self._frame.between + answer)

    def _encode(self, text: str, add_special_tokens: bool = False) -> IntArray:
        ids = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return np.array(ids, np.int64) % self._vocabulary

    def _fact(self, lot: random.Random) -> dict[str, str]:
        return {"kind": "number", "key": self._key(lot), "value": str(lot.randint(10**6, 10**7 - 1))}

    def _key(self, lot: random.Random) -> str:
        return f"{lot.choice(self._words)}-{lot.choice(self._words)}"


Maker = Callable[[TaskMaker, int, random.Random], Sample]
TASKS: dict[str, Maker] = {
    "niah_single_1": lambda maker, length, lot: maker.niah(length, lot, many=False, ids=False),
    "niah_multikey_2": lambda maker, length, lot: maker.niah(length, lot, many=True, ids=False),
    "niah_multikey_3": lambda maker, length, lot: maker.niah(length, lot, many=True, ids=True),
    "vt": TaskMaker.tracking,
    "cwe": TaskMaker.common_words,
    "fwe": TaskMaker.frequent_words,
}


def _room(length: int, segments: Sequence[IntArray]) -> int:
    """Tokens of text around a prompt's other segments. Raises ConfigError."""
    room = length - sum(map(len, segments))
    if room < 0:
        raise ConfigError(
            f"this task's prompt has at least {length - room} tokens, but length is {length}", field="length"
        )
    return room


def _repeat(line: str) -> Iterator[str]:
    while True:
        yield line


def _uuid(lot: random.Random) -> str:
    return str(uuid.UUID(int=lot.getrandbits(128), version=4))
