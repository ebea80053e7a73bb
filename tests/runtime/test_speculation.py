"""Answers that are read ahead are those of plain decode: tokens, log-probabilities, and what they leave behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests import bundles
from tests.bundles import random_ids

from h2o_runtime import Generator
from h2o_runtime.answers.completion import Completion
from h2o_runtime.answers.events import Finished, TokenGenerated
from h2o_runtime.answers.request import Request
from h2o_runtime.answers.sampling import SampledToken, Sampler, Sampling
from h2o_runtime.caches.contiguous import Contiguous
from h2o_runtime.caches.evicting import Evicting
from h2o_runtime.caches.paged import Paged
from h2o_runtime.errors import Cancelled
from h2o_runtime.execution.answer_steps import AnswerSteps
from h2o_runtime.execution.reading import Watch
from h2o_runtime.names import Speculation
from h2o_runtime.policies.decode.quest import Quest
from h2o_runtime.policies.prefill import Full
from h2o_runtime.text_model import TextModel

CONTEXT = 200
FULL = Full()
ON_AND_OFF: tuple[Speculation, ...] = ("lookup", "off")
CACHES = {"contiguous": Contiguous(), "paged-int8": Paged(rows="int8")}


def after(generator: Generator, steps: AnswerSteps, token: int, wanted: int) -> NDArray[np.float32]:
    """Logits after the token, with the steps that they need."""
    run, logits = steps.after(token, wanted), None
    while True:
        try:
            logits = generator.step(run.send(logits).tokens)
        except StopIteration as end:
            return np.asarray(end.value)


@pytest.fixture(scope="module")
def folder(shared_folder: Path) -> Path:
    return bundles.named(shared_folder, "llama-g2-d64-llama3", "-int8", weights="int8")[1]


def load(folder: Path, **options: Any) -> Generator:
    fixed: dict[str, Any] = {"context": CONTEXT, "threads": 1, "device": "cpu", "dense_form": "native"}
    return Generator.load(folder, **fixed | options)


@pytest.fixture(scope="module", params=CACHES)
def generator(request: pytest.FixtureRequest, folder: Path) -> Iterator[Generator]:
    with load(folder, cache=CACHES[request.param]) as loaded:
        yield loaded


class Always:
    """A drafter whose drafts are what the test says, right or wrong."""

    def __init__(self, text: list[int], wrong: list[int], length: int) -> None:
        self.text, self.wrong, self.length, self.at = text, wrong, length, 0

    def append(self, token: int) -> None:
        self.at += 1

    def draft(self, most: int) -> list[int]:
        ahead = range(self.at, min(self.at + min(self.length, most), len(self.text)))
        return [self.text[i] if i not in self.wrong else self.text[i] + 1 for i in ahead]


Answer = tuple[list[SampledToken], str, list[int], NDArray[np.float32], Any]


def answered(generator: Generator, prompt: list[int], **options: Any) -> Answer:
    """Tokens of an answer, why it ended, and what the session then is: tokens, logits, rows and pages."""
    generator.reset()
    sampled, reason = [], ""
    for event in generator.generate(prompt, policy=FULL, reuse=False, **options):
        if isinstance(event, TokenGenerated):
            sampled.append(event.sampled)
        elif isinstance(event, Finished):
            reason = event.reason
    return sampled, reason, *left(generator)


def left(generator: Generator) -> tuple[list[int], NDArray[np.float32], Any]:
    session = generator.session
    assert session.logits is not None
    caches = session.store.fixed_rows()
    assert caches is not None
    rows = [kv.stored_rows(session.length) for kv in caches]
    arrays = [array.copy() for layer in rows for array in layer.values()]
    return session.known.tolist(), session.logits, (arrays, session.store.report().get("pages_in_use"))


def same(ours: Answer, theirs: Answer) -> None:
    assert ours[:3] == theirs[:3]
    np.testing.assert_array_equal(ours[3], theirs[3])
    assert ours[4][1] == theirs[4][1]
    for array, expected in zip(ours[4][0], theirs[4][0], strict=True):
        np.testing.assert_array_equal(array, expected)


SAMPLINGS = {
    "greedy": Sampling(logprobs=3),
    "penalised": Sampling(repetition_penalty=1.3, frequency_penalty=0.2),
    "sampled": Sampling(temperature=0.7, top_k=20, seed=3, logprobs=2),
    "nearly-greedy": Sampling(temperature=0.05, seed=11),
}


@settings(max_examples=8, deadline=None)
@given(
    words=st.lists(st.lists(st.integers(2, 240), min_size=1, max_size=5), min_size=2, max_size=4),
    order=st.lists(st.integers(0, 3), min_size=4, max_size=30),
    sampling=st.sampled_from(list(SAMPLINGS.values())),
    most=st.integers(1, 60),
)
def test_answers_are_those_of_plain_decode(
    generator: Generator, words: list[list[int]], order: list[int], sampling: Sampling, most: int
) -> None:
    """Over prompts that repeat themselves; the random model's greedy answers soon do so too."""
    prompt = [token for which in order for token in words[which % len(words)]]
    options = {"max_new_tokens": most, "sampling": sampling, "stop_tokens": (7, 9)}
    plain = answered(generator, prompt, speculate="off", **options)
    assert generator.drafts.drafted == 0
    same(answered(generator, prompt, speculate="lookup", **options), plain)


@settings(max_examples=8, deadline=None)
@given(
    wrong=st.lists(st.integers(0, 40), max_size=8),
    length=st.integers(1, 20),
    most=st.integers(2, 50),
    sampling=st.sampled_from(list(SAMPLINGS.values())),
)
def test_any_draft_gives_the_same_answer(
    generator: Generator, wrong: list[int], length: int, most: int, sampling: Sampling
) -> None:
    prompt = random_ids(30, 4).tolist()
    plain = answered(generator, prompt, speculate="off", max_new_tokens=most, sampling=sampling)
    text = [sampled.token for sampled in plain[0]]
    generator.reset()
    logits = generator.prefill(prompt, FULL, reuse=False)
    drafter: Any = Always(text, wrong, length)
    steps = AnswerSteps(generator.session, drafter, generator.loaded.forward.most_step_rows)
    sampler = Sampler(sampling, generator.model.vocab_size)
    sampler.reset(prompt)
    sampled = []
    for left_over in range(most - 1, -1, -1):
        sampled.append(sampler.sample(logits))
        sampler.accept(sampled[-1].token)
        if left_over:
            logits = after(generator, steps, sampled[-1].token, left_over)
    steps.close()
    same((sampled, plain[1], *left(generator)), plain)
    rejected = steps.count.drafted - steps.count.accepted
    assert steps.count.drafted >= steps.count.accepted > 0 or rejected or most == 2
    if not wrong:
        assert rejected == 0


def test_drafts_come_and_are_counted(generator: Generator) -> None:
    prompt = random_ids(40, 1).tolist()
    answered(generator, prompt, max_new_tokens=100)
    count = generator.drafts
    assert 0 < count.accepted <= count.drafted  # a random model's greedy answer goes round in circles
    watch = Watch(cancelled=lambda: True)
    with pytest.raises(Cancelled):
        list(generator.generate(random_ids(41, 2).tolist(), watch=watch))
    assert generator.drafts.drafted == 0


@pytest.mark.parametrize("after", [1, 20])
def test_an_answer_that_is_stopped_leaves_what_a_plain_one_leaves(generator: Generator, after: int) -> None:
    prompt = random_ids(40, 1).tolist()

    def stopped(speculate: Any) -> Any:
        generator.reset()
        asked = iter(range(1000))
        watch = Watch(cancelled=lambda: generator.length > len(prompt) and next(asked) >= after)
        with pytest.raises(Cancelled):
            list(generator.generate(prompt, 90, FULL, watch=watch, speculate=speculate))
        return [], "", *left(generator)

    same(stopped("lookup"), stopped("off"))

    def abandoned(speculate: Any) -> Any:
        generator.reset()
        events: Any = generator.generate(prompt, 90, FULL, speculate=speculate)
        with closing(events):
            for _ in range(after + 1):
                next(events)
        return [], "", *left(generator)

    same(abandoned("lookup"), abandoned("off"))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"decoding": Quest(budget=16)}, "the decode policy quest remembers"),
        ({"cache": Evicting(tokens=128)}, "the cache does not leave rows"),
        ({"dense_form": "exact"}, "a row depends on those beside it"),
    ],
)
def test_where_rows_cannot_be_taken_back_it_is_off_and_says_why(
    folder: Path, options: dict[str, Any], reason: str
) -> None:
    with load(folder, **options) as generator:
        speculate, because = generator.speculation("lookup")
        assert speculate == "off"
        assert because is not None
        assert reason in because
        list(generator.generate(random_ids(40, 1).tolist(), 40, FULL, speculate="lookup"))
        assert generator.drafts.drafted == 0
        assert generator.speculation("off") == ("off", None)


@pytest.mark.parametrize("generator", ["contiguous"], indirect=True)
def test_sampled_tokens_have_the_samplers_distribution(generator: Generator) -> None:
    """Chi-squared of tokens of drafts that are right now and then, against the sampler's own distribution."""
    sampling = Sampling(temperature=1.5, top_k=6, seed=2)
    prompt, draws = random_ids(20, 8).tolist(), 600
    logits = generator.prefill(prompt, FULL, reuse=False).copy()
    vocab = generator.model.vocab_size
    ids, shares = Sampler(sampling, vocab).distribution(logits)
    first = int(ids[shares.argmax()])
    generator.decode(first)
    assert generator.session.logits is not None
    next_ids, next_shares = Sampler(sampling, vocab).distribution(generator.session.logits)
    sampler = Sampler(sampling, vocab)
    counts: dict[int, int] = dict.fromkeys(next_ids.tolist(), 0)
    drafted = int(next_ids[np.argsort(next_shares)[-2]])
    for _ in range(draws):
        generator.session.truncate(len(prompt))
        drafter: Any = Always([first, drafted, 5], [], 2)
        steps = AnswerSteps(generator.session, drafter, generator.loaded.forward.most_step_rows)
        token = sampler.sample(after(generator, steps, first, 4)).token
        counts[token] += 1
        before = steps.count.accepted
        after(generator, steps, token, 3)
        assert (steps.count.accepted > before) == (token == drafted)
        steps.close()
    expected = next_shares * draws
    found = np.array([counts[int(token)] for token in next_ids])
    assert ((found - expected) ** 2 / expected).sum() < 30  # of 5 degrees of freedom: once in 10^5 trials


@pytest.mark.parametrize("stop", [(), ("e",), ("o ", "th")])
def test_stop_strings_and_counts_of_a_text_model(text_model: TextModel, stop: tuple[str, ...]) -> None:
    prompt = text_model.text_prompt("one two three four one two three four one two three four one two")
    found: list[tuple[Completion, list[int]]] = []
    for speculate in ON_AND_OFF:
        request = Request(prompt, 120, FULL, stop=stop, speculate=speculate, reuse=False)
        *_, completion = text_model.complete(request)
        assert isinstance(completion, Completion)
        found.append((completion, text_model.generator.session.known.tolist()))
        pages = text_model.generator.session.store.report()["pages_in_use"]
        assert pages == -(-text_model.generator.length // 16)
    (ahead, its_known), (plain, known) = found
    assert (ahead.text, ahead.stop, ahead.finish_reason) == (plain.text, plain.stop, plain.finish_reason)
    assert ahead.tokens == plain.tokens
    assert its_known == known
    assert plain.timings.draft_n == 0
    if not stop:
        assert ahead.timings.draft_n >= ahead.timings.draft_n_accepted > 0


@pytest.fixture(scope="module")
def text_model(tiny_bundle: Path) -> Iterator[TextModel]:
    with TextModel.load(
        tiny_bundle, context=600, threads=1, device="cpu", dense_form="native", cache=Paged()
    ) as model:
        yield model
