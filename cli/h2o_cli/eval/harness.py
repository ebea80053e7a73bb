"""A bundle as a model of lm-eval, the evaluation harness, so that its tasks run with any prefill policy.

Import it only if lm-eval is installed; nothing else of h2o-eval needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from lm_eval.api.model import LM

from h2o_cli.eval.metrics import losses
from h2o_cli.eval.needles import answer
from h2o_cli.eval.readings import IntArray
from h2o_runtime import Generator
from h2o_runtime.answers.sampling import log_probabilities
from h2o_runtime.policies.prefill import PrefillPolicy
from h2o_runtime.text import ChatTemplate, Tokenizer

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance


class BundleModel(LM):  # type: ignore[misc]
    """One bundle under one prefill configuration. A continuation is decoded after the prefill of its
    context.
    """

    def __init__(self, generator: Generator, folder: str, policy: PrefillPolicy[Any]) -> None:
        """folder: of the bundle `generator` was loaded from."""
        super().__init__()
        self._generator, self._policy = generator, policy
        self._tokenizer = Tokenizer.load(folder)
        self._folder = folder

    @property
    def tokenizer_name(self) -> str:
        return self._folder

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """For each (context, continuation): log-probability, and whether greedy decoding would give it."""
        return [self._continued(*request.args) for request in requests]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """For each whole text, in windows as long as the context."""
        return [self._whole(request.args[0]) for request in requests]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Greedy answers, up to the first of the end strings."""
        return [self._answered(*request.args) for request in requests]

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Without a generation prompt, an assistant's last message is the beginning of the answer."""
        continued = not add_generation_prompt and chat_history[-1]["role"] == "assistant"
        return ChatTemplate.load(self._folder).render(
            chat_history, add_generation_prompt=add_generation_prompt, continue_final_message=continued
        )

    def _continued(self, context: str, continuation: str) -> tuple[float, bool]:
        known, whole = self._encode(context), self._encode(context + continuation)
        following = whole[len(known) :]
        if not len(following):  # it merges with the context's last token
            known, following = whole[:-1], whole[-1:]
        room = self._generator.context - len(following)
        logits: Any = self._generator.prefill(known[-room:], self._policy, reuse=False)
        total, greedy = 0.0, True
        for index, token in enumerate(following.tolist()):
            total += float(log_probabilities(logits[None])[0, token])
            greedy = greedy and int(np.argmax(logits)) == token
            if index + 1 < len(following):
                logits = self._generator.decode(token)
        return total, greedy

    def _whole(self, text: str) -> float:
        ids, total = self._encode(text), 0.0
        step = self._generator.context
        for start in range(0, len(ids) - 1, step - 1):  # the last token of a window begins the next
            window = ids[start : start + step]
            for rows, logits in self._generator.each_logits(window, self._policy):
                known = window[rows.start + 1 : rows.stop + 1]
                total -= float(losses(logits[: len(known)], known).sum())
        return total

    def _answered(self, context: str, settings: dict[str, Any]) -> str:
        tokens = int(settings.get("max_gen_toks", 256))
        ids = self._encode(context)[-(self._generator.context - tokens) :]
        said = answer(self._generator, self._tokenizer, ids, self._policy, tokens)
        return _until(said, settings.get("until") or ())

    def _encode(self, text: str) -> IntArray:
        return np.array(self._tokenizer.encode(text), np.int64) % self._generator.model.vocab_size


def _until(text: str, ends: str | Sequence[str]) -> str:
    """The text before the first end string."""
    for end in [ends] if isinstance(ends, str) else ends:
        if end:
            text = text.partition(end)[0]
    return text
