"""Facts in a long document, and prompts that ask for them, in the style of RULER's needles.

RULER: Hsieh et al., 2024, "RULER: What's the Real Context Size of Your Long-Context Language Models?"
"""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from h2o_cli.eval.readings import IntArray
from h2o_cli.eval.texts import manual
from h2o_runtime import Generator
from h2o_runtime.errors import BundleError, ConfigError
from h2o_runtime.policies.prefill import PrefillPolicy
from h2o_runtime.text import Tokenizer
from h2o_runtime.text.chat_template import ChatTemplate

log = logging.getLogger(__name__)

NEEDLE = "One of the special magic number for {key} is: {value}.\n"
QUIZ = (
    "Some special magic numbers are hidden within the following text. Make sure to memorize them. I will quiz you "
    "about the numbers afterwards.\n"
)
QUESTION = "\nWhat is the special magic number for {key} mentioned in the provided text?"
ANSWER = "The special magic number for {key} mentioned in the provided text is"
ANSWER_TOKENS = 16
_MARK = "<the user's message>"


@dataclass(frozen=True)
class ChatFrame:
    """What a chat template writes before a user's message, and between it and the assistant's answer: a prompt is
    one turn of a conversation, as an instruct model is trained to read it.

    The defaults are those of a model without a template: it goes on with the text.
    """

    before: str = ""
    between: str = " "

    @classmethod
    def of(cls, bundle: Path) -> ChatFrame:
        """By the bundle's template, with thinking turned off. Raises InputError if it refuses a single message."""
        try:
            template = ChatTemplate.load(bundle)
        except BundleError as error:
            log.info("no chat template: %s", error)
            return cls()
        try:
            text = template.render([{"role": "user", "content": _MARK}], enable_thinking=False)
        finally:
            template.close()
        before, mark, between = text.partition(_MARK)
        if not mark:
            log.warning("the chat template does not show a user's message: tasks are asked without it")
            return cls()
        return cls(before, between)


@dataclass(frozen=True)
class Sample:
    """ids     int64 [N], the prompt
    answer  a text that the answer has to contain
    """

    ids: IntArray
    answer: str


def answer(
    generator: Generator,
    tokenizer: Tokenizer,
    ids: IntArray,
    policy: PrefillPolicy[Any],
    tokens: int = ANSWER_TOKENS,
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


class NeedleMaker:
    """Prompts for one tokenizer; the same seed gives the same prompt."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: int, frame: ChatFrame) -> None:
        """frame: around every prompt."""
        self._tokenizer, self._vocabulary, self._frame = tokenizer, vocabulary, frame
        self._haystack: IntArray | None = None
        self._words = sorted(set(re.findall(r"\b[a-z]{5,10}\b", manual())))

    def needles(self, length: int, depths: Sequence[float], seed: int) -> list[Sample]:
        """A fact at each of `depths` (0 to 1) of one document, and for each a prompt that asks for it after the
        document. The longest prompt has `length` tokens.
        """
        lot = random.Random(seed)
        facts = [self._fact(lot) for _ in depths]
        # A template writes the special tokens itself.
        before, between = self._frame.before, self._frame.between
        head = self._encode(before + QUIZ, add_special_tokens=not before)
        hidden = [self._encode(NEEDLE.format(**fact)) for fact in facts]
        asked = [self._encode((QUESTION + between + ANSWER).format(**fact)) for fact in facts]
        text = self._document(length, [head, *hidden, max(asked, key=len)], lot)
        places = [round(depth * len(text)) for depth in depths]
        document, done = [head], 0
        for i in sorted(range(len(places)), key=places.__getitem__):
            document += [text[done : places[i]], hidden[i]]
            done = places[i]
        document.append(text[done:])
        return [
            Sample(np.concatenate([*document, question]), fact["value"])
            for fact, question in zip(facts, asked, strict=True)
        ]

    def _document(self, length: int, others: Sequence[IntArray], lot: random.Random) -> IntArray:
        """As many tokens of text as fit beside a prompt's other segments. Raises ConfigError."""
        tokens = length - sum(map(len, others))
        if tokens < 0:
            raise ConfigError(
                f"this task's prompt has at least {length - tokens} tokens, but length is {length}",
                field="length",
            )
        if self._haystack is None:
            self._haystack = self._encode(manual())
        text = self._haystack
        if len(text) < tokens:
            text = np.tile(text, -(-tokens // len(text)))
        start = lot.randint(0, len(text) - tokens)
        return text[start : start + tokens]

    def _encode(self, text: str, add_special_tokens: bool = False) -> IntArray:
        ids = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return np.array(ids, np.int64) % self._vocabulary

    def _fact(self, lot: random.Random) -> dict[str, str]:
        key = f"{lot.choice(self._words)}-{lot.choice(self._words)}"
        return {"key": key, "value": str(lot.randint(10**6, 10**7 - 1))}
