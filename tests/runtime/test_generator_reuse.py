"""Whatever was asked before, an answer is the one that a new generator gives to the same conversation.

A state machine sends prompts that share beginnings, continue, repeat, shrink and are cancelled in the middle.
After each it replays on a new generator what the cache claims to hold: one prompt from an empty cache, then
the later turns and tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from numpy.typing import NDArray
from tests import bundles
from tests.bundles import relative_error
from tests.prefill import altered

from h2o_runtime import Generator
from h2o_runtime.caches import Contiguous
from h2o_runtime.errors import Cancelled
from h2o_runtime.execution.reading import Watch
from h2o_runtime.loaded_model import LoadedModel
from h2o_runtime.policies.decode import DecodePolicy
from h2o_runtime.policies.decode.quest import Quest
from h2o_runtime.policies.decode.subquadratic import SubquadraticDecode
from h2o_runtime.policies.prefill import ColumnSum, PrefillPolicy
from h2o_runtime.sessions.saved import SavedSession, save_session

pytestmark = pytest.mark.usefixtures("small_blocks")
CONTEXT = 200
SPARSE = ColumnSum(chunk_size=16, batch_size=32, local=4, heavy=4, dense_tail=0)
POLICIES = (
    SPARSE,
    altered(SPARSE, dense_tail=6),
    altered(SPARSE, dense_tail=40),
    altered(SPARSE, score="window", window=3, heads="query", dense_tail=3),
    altered(SPARSE, score="window", window=3, heavy=0),
    altered(SPARSE, heads="query", chunk_size=9, heavy=3),
    altered(SPARSE, score="query", dense_tail=6, tile=4, queries=2, candidates=12),
    altered(SPARSE, score="query", dense_tail=6, tile=8, heavy=11, grow=0, missed=0.01),
    altered(SPARSE, score="query", chunk_size=9, heavy=3, tile=4, candidates=20),
    altered(SPARSE, policy="full"),
)
DOCUMENTS = [bundles.random_ids(CONTEXT, seed).tolist() for seed in (1, 2)]
DOCUMENTS[1][:70] = DOCUMENTS[0][:70]


@dataclass(frozen=True)
class Turn:
    """One thing done to a generator: a whole prompt, or one generated token."""

    prompt: tuple[int, ...] = ()
    token: int = -1

    def run(self, generator: Generator, policy: PrefillPolicy[Any]) -> NDArray[np.float32]:
        if self.prompt:
            return generator.prefill(self.prompt, policy)
        return generator.decode(self.token)


def tokens_of(story: list[Turn]) -> int:
    """How many tokens the cache has after it."""
    length = 0
    for turn in story:
        length = len(turn.prompt) or length + 1
    return length


def new_generator(model: Generator) -> Generator:
    """A generator with nothing in its past, on the weights of another one."""
    return Generator(model.loaded)


class Conversations(RuleBasedStateMachine):
    model: Generator  # set by the test

    @initialize(policy=st.sampled_from(POLICIES))
    def begin(self, policy: PrefillPolicy[Any]) -> None:
        self.policy = policy
        self.generator = new_generator(self.model)
        self.cached: list[int] = []
        self.story: list[Turn] = []  # what the cache stands for; empty: nothing that a prompt could continue
        self.answered = False  # whether the logits after the last cached token are at hand
        self.cancelled_at: int | None = (
            None  # where in the story a turn began that was cancelled since the last prompt
        )

    # What is asked

    @rule(
        document=st.integers(0, 1),
        shared=st.integers(1, CONTEXT - 40),
        question=st.integers(0, 40),
        seed=st.integers(0, 3),
        batch=st.sampled_from([16, 32, 100]),
    )
    def ask_about_a_document(self, document: int, shared: int, question: int, seed: int, batch: int) -> None:
        words = bundles.random_ids(question, 10 + seed).tolist()
        self.prefill([*DOCUMENTS[document][:shared], *words], batch)

    @precondition(lambda self: len(self.cached) > 12)
    @rule(less=st.integers(1, 12), new=st.integers(1, 12), seed=st.integers(0, 3))
    def ask_another_question_of_about_the_same_length(self, less: int, new: int, seed: int) -> None:
        self.prefill([*self.cached[:-less], *bundles.random_ids(new, 60 + seed).tolist()], 32)

    @precondition(lambda self: self.cached)
    @rule(new=st.integers(1, 45), seed=st.integers(0, 3), batch=st.sampled_from([16, 32, 100]))
    def go_on(self, new: int, seed: int, batch: int) -> None:
        self.prefill([*self.cached, *bundles.random_ids(new, 20 + seed).tolist()], batch)

    @precondition(lambda self: self.cached)
    @rule()
    def ask_again(self) -> None:
        self.prefill(self.cached, 32)

    @precondition(lambda self: len(self.cached) > 1)
    @rule(new=st.integers(0, 45), seed=st.integers(0, 3))
    def repeat_or_change_the_last_turn(self, new: int, seed: int) -> None:
        turns = [index for index, turn in enumerate(self.story) if turn.prompt]
        known = tokens_of(self.story[: turns[-1]]) if turns else 0
        last = list(self.story[turns[-1]].prompt) if turns else self.cached[:-1]
        other = [*self.cached[:known], *bundles.random_ids(new, 50 + seed).tolist()]
        self.prefill(other if known and new else last, 32)

    @precondition(lambda self: self.cached)
    @rule(share=st.floats(0, 1))
    def take_back(self, share: float) -> None:
        self.prefill(self.cached[: max(1, int(share * len(self.cached)))], 32)

    @precondition(lambda self: self.story)
    @rule(count=st.integers(1, 12), seed=st.integers(0, 3))
    def generate(self, count: int, seed: int) -> None:
        for token in bundles.random_ids(min(count, CONTEXT - len(self.cached)), 30 + seed).tolist():
            self.logits = self.generator.decode(token).copy()
            self.story.append(Turn(token=token))
            self.cached.append(token)
            self.answered = True
        self.check()

    @rule(
        document=st.integers(0, 1),
        shared=st.integers(1, CONTEXT - 40),
        checkpoint=st.integers(0, 25),
        again=st.booleans(),
    )
    def cancel_a_question(self, document: int, shared: int, checkpoint: int, again: bool) -> None:
        self.cancel(DOCUMENTS[document][:shared], checkpoint, again)

    @precondition(lambda self: self.cached)
    @rule(new=st.integers(1, 45), checkpoint=st.integers(0, 25), again=st.booleans())
    def cancel_the_next_turn(self, new: int, checkpoint: int, again: bool) -> None:
        self.cancel([*self.cached, *bundles.random_ids(new, 40).tolist()], checkpoint, again)

    @rule()
    def forget(self) -> None:
        self.generator.reset()
        self.cached, self.story, self.answered, self.cancelled_at = [], [], False, None
        assert self.generator.length == 0
        assert not self.generator.report().last.size

    @precondition(lambda self: self.cached)
    @rule()
    def go_on_another_day(self) -> None:
        with TemporaryDirectory() as folder:
            file = Path(folder) / "session"
            save_session(self.generator.session, file)
            self.generator = new_generator(self.model)
            SavedSession.open(file).load_into(self.generator.session, self.policy)

    # What must come of it

    def prefill(self, prompt: list[int], batch: int) -> None:
        prompt = prompt[:CONTEXT]
        policy = altered(self.policy, batch_size=batch)
        self.logits = self.generator.prefill(prompt, policy).copy()
        assert self.generator.length == len(prompt)
        self.told(prompt)

    def told(self, prompt: list[int]) -> None:
        """The prompt was answered."""
        if not (self.answered and prompt == self.cached):
            self.story = [*self.before(prompt), Turn(tuple(prompt))]
        self.cached, self.answered, self.cancelled_at = list(prompt), True, None
        self.check()

    def cancel(self, prompt: list[int], checkpoint: int, again: bool) -> None:
        prompt = prompt[:CONTEXT]
        calls = iter(range(checkpoint))
        watch = Watch(cancelled=lambda: next(calls, None) is None)
        before, story = list(self.cached), self.before(prompt)
        try:
            self.logits = self.generator.prefill(prompt, self.policy, watch).copy()
        except Cancelled:
            kept = self.generator.length
            assert kept < len(prompt)
            assert prompt[:kept] == before[:kept]
            self.cached, self.answered = prompt[:kept], False
            self.story = story if kept == tokens_of(story) else []
            self.cancelled_at = len(self.story) or None
            if again:
                self.prefill(prompt, 32)
        else:  # it had ended before it was to be cancelled
            self.told(prompt)

    def before(self, prompt: list[int]) -> list[Turn]:
        """What the prompt is a turn of: all of the story, or all before its last turn, which comes anew.

        With full attention it makes no difference. A turn that was cancelled is the last one too, though nothing of
        it is in the story.
        """
        turns = [index for index, turn in enumerate(self.story) if turn.prompt] or [0]
        last = turns[-1] if self.cancelled_at is None else self.cancelled_at
        for story in (self.story, self.story[:last]):
            known = tokens_of(story)
            if 0 < known < len(prompt) and prompt[:known] == self.cached[:known]:
                return story
        return []

    def check(self) -> None:
        twin = new_generator(self.model)
        for turn in self.story:
            expected = turn.run(twin, self.policy)
        for ours, theirs in zip(self.generator.report().last, twin.report().last, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        assert relative_error(self.logits, expected) < 1e-4


@pytest.fixture
def small(shared_folder: Path) -> Any:
    _, bundle = bundles.named(shared_folder, "llama-g2-d64-llama3")
    with Generator.load(bundle, context=CONTEXT) as generator:
        yield generator


def test_without_reuse_no_earlier_request_has_a_say(small: Generator) -> None:
    first = DOCUMENTS[0][:90]
    turn = [*first, *bundles.random_ids(60, 3).tolist()]
    expected = small.prefill(turn, SPARSE).copy()
    small.prefill(first, SPARSE)
    for _ in range(2):
        np.testing.assert_array_equal(small.prefill(turn, SPARSE, reuse=False), expected)
        assert small.reused == 0


def test_the_sets_of_a_chunk_that_two_prompts_have_read_lie_as_those_of_one(small: Generator) -> None:
    """Also where a chunk remembers less than it has room for, which is what its last row could."""
    policy = altered(SPARSE, score="query", tile=4, dense_tail=6, grow=0)
    assert policy.memory_at(48) < policy.memory_at(63)
    ids = DOCUMENTS[0][:120]
    generator = new_generator(small)
    generator.prefill(ids[:61], policy)
    generator.prefill([*ids[:58], 7, *ids[:40]], policy)
    assert generator.reused == 52
    sets = generator.boundary_memory()
    assert sets.shape[1] == (92 - 16) // 4
    generator.reset()
    generator.prefill([*ids[:58], 7, *ids[:40]], policy)
    np.testing.assert_array_equal(generator.boundary_memory(), sets)


@pytest.mark.parametrize("change", [{}, {"missed": 0.01}, {"heavy": 11, "grow": 0}])
@pytest.mark.parametrize("rows", ["model", "int8"])
def test_a_question_of_about_the_same_length_reads_itself_alone(
    small: Generator, change: dict[str, Any], rows: Any
) -> None:
    """The tails begin at the same row, so the document's rows in them are those of a new generator."""
    policy = altered(SPARSE, score="query", tile=4, dense_tail=6, **change)
    document, first, second = DOCUMENTS[0][:150], [1, 2, 3], [7, 8]
    bundle = small.bundle.folder
    with Generator.load(bundle, context=CONTEXT, cache=Contiguous(rows=rows)) as generator:
        expected = generator.prefill([*document, *second], policy).copy()
        sets = generator.report().last
        generator.reset()
        generator.prefill([*document, *first], policy)
        assert relative_error(generator.prefill([*document, *second], policy), expected) < 1e-4
        assert generator.reused == len(document)
        for ours, theirs in zip(generator.report().last, sets, strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("decoding", [Quest(budget=16, dense_layers=0), SubquadraticDecode(window=4)])
def test_full_attention_takes_nothing_from_a_sparse_decode(
    small: Generator, decoding: DecodePolicy[Any]
) -> None:
    policy, ids = altered(SPARSE, policy="full"), bundles.random_ids(150)
    spec = replace(small.spec, decoding=decoding)
    generator = Generator(LoadedModel.of(spec, small.loaded.backend))
    generator.prefill(ids[:100], policy)
    for token in ids[100:120]:
        sparse = generator.decode(int(token)).copy()
    expected = new_generator(small).prefill(ids[:120], policy)
    assert relative_error(sparse, expected) > 1e-3  # there is something that could be taken
    assert relative_error(generator.prefill(ids[:120], policy), expected) < 1e-5
    assert generator.reused == 100
    expected = new_generator(small).prefill(ids, policy)
    assert relative_error(generator.prefill(ids, policy), expected) < 1e-5
    assert generator.reused == 120  # those are exact by now


def test_a_cancelled_turn_is_the_last_one(small: Generator) -> None:
    """It has left nothing in the cache, and what follows may come in its place."""

    class Machine(Conversations):
        model = small

    machine = Machine()
    machine.begin(policy=SPARSE)
    machine.ask_about_a_document(document=0, shared=1, question=0, seed=0, batch=16)
    machine.cancel_a_question(document=0, shared=2, checkpoint=0, again=False)
    machine.generate(count=1, seed=0)
    machine.ask_about_a_document(document=0, shared=18, question=0, seed=0, batch=16)
    assert small.length == 0  # the weights' first session was not the machine's


def test_every_conversation_is_answered_as_by_a_new_generator(small: Generator) -> None:
    class Machine(Conversations):
        model = small

    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Machine, settings=settings(max_examples=15, stateful_step_count=20, deadline=None)
    )
