"""The public API of a generator: what it gives, and how it refuses what cannot be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import bundles
from tests.bundles import random_ids

from h2o_runtime import Generator
from h2o_runtime.answers.events import Finished, Prefilled, TokenGenerated
from h2o_runtime.answers.sampling import Sampling
from h2o_runtime.caches import Cache, Contiguous, Paged
from h2o_runtime.errors import Cancelled, ConfigError, ContextOverflowError, InputError, UnknownTokenError
from h2o_runtime.execution.reading import Watch
from h2o_runtime.policies.prefill import Full, PrefillPolicy, Query

POLICY = Query(chunk_size=16, batch_size=32, local=4, heavy=4, dense_tail=5)
h2o_and_full = pytest.mark.parametrize("policy", [POLICY, Full(batch_size=32)], ids=["h2o", "full"])


@pytest.fixture(scope="module")
def bundle(shared_folder: Path) -> Path:
    return bundles.named(shared_folder, "llama-g2-d64-llama3")[1]


@pytest.fixture(scope="module")
def loaded(bundle: Path) -> Iterator[Generator]:
    with Generator.load(bundle, context=100) as generator:
        yield generator


@pytest.fixture
def small(loaded: Generator) -> Generator:
    """A random model with a context of 100 tokens and an empty cache."""
    loaded.reset()
    return loaded


# --- Prefill, decode, logprobs ----------------------------------------------------------------------------


@pytest.mark.parametrize("cache", [Contiguous(), Paged()])
@h2o_and_full
def test_tokens_that_are_known_are_decoded_many_at_once(
    bundle: Path, cache: Cache, policy: PrefillPolicy[Any]
) -> None:
    ids = random_ids(90)
    with Generator.load(bundle, context=100, cache=cache) as generator:
        generator.prefill(ids[:60], policy)
        one_by_one = [generator.decode(int(token)) for token in ids[60:]]
        after = generator.decode(5)
        generator.prefill(ids[:60], policy, reuse=False)
        found = [(rows, logits.copy()) for rows, logits in generator.decode_given(ids[60:])]
        assert [row for rows, _ in found for row in range(rows.start, rows.stop)] == list(range(30))
        together = np.concatenate([logits for _, logits in found])
        np.testing.assert_allclose(together, one_by_one, atol=2e-4)
        assert generator.length == 90
        np.testing.assert_allclose(generator.decode(5), after, atol=2e-4)
        generator.prefill(np.append(ids, [5, 8]), policy)
        assert generator.reused == 91  # they are worth what decoded tokens are


def test_what_cannot_be_decoded_at_once(small: Generator) -> None:
    with pytest.raises(InputError, match="prefill first"):
        next(small.decode_given([1]))
    small.prefill(random_ids(60), POLICY)
    with pytest.raises(ContextOverflowError):
        next(small.decode_given(random_ids(41)))
    with pytest.raises(Cancelled):
        next(small.decode_given([1, 2], Watch(cancelled=lambda: True)))
    expected = small.decode(7)
    small.prefill(random_ids(60), POLICY, reuse=False)
    np.testing.assert_array_equal(small.decode(7), expected)


@pytest.mark.parametrize("kind", [list, tuple, np.array, lambda ids: np.array(ids, np.int32)])
def test_token_ids_come_in_any_flat_form(small: Generator, kind: Any) -> None:
    ids = random_ids(20).tolist()
    expected = small.prefill(np.array(ids), POLICY).copy()
    small.reset()
    np.testing.assert_array_equal(small.prefill(kind(ids), POLICY), expected)


def test_logprobs_are_those_of_each_prefix_with_full_attention(small: Generator) -> None:
    policy = Full()
    ids = random_ids(12)
    logprobs = small.logprobs(ids, policy)
    assert logprobs.shape == (11,)
    assert logprobs.dtype == np.float32
    for t in range(1, 12):
        logits = small.prefill(ids[:t], policy).astype(np.float64)
        expected = logits[ids[t]] - np.log(np.exp(logits).sum())
        assert abs(logprobs[t - 1] - expected) < 1e-4


def test_logprobs_of_one_token_are_none(small: Generator) -> None:
    assert small.logprobs([5], POLICY).shape == (0,)


def test_a_prompt_may_go_on_after_its_logprobs(small: Generator) -> None:
    ids = random_ids(60)
    expected = small.prefill(ids, POLICY).copy()
    small.logprobs(ids, POLICY)
    np.testing.assert_allclose(small.prefill(ids, POLICY), expected, atol=1e-4)
    assert small.reused == 60


def test_the_default_configuration_is_the_bundles(shared_folder: Path) -> None:
    checkpoint, _ = bundles.named(shared_folder, "llama-g2-d64-llama3")
    target = shared_folder / "bundle-with-a-configuration"
    if not target.exists():
        bundles.export(checkpoint, target, prefill=POLICY)
    with Generator.load(target, context=100) as generator:
        ids = random_ids(80)
        np.testing.assert_array_equal(generator.logprobs(ids), generator.logprobs(ids, POLICY))
        assert generator.report().last[0].shape == (generator.model.kv_heads, POLICY.memory_at(0))


def test_memory_sets_are_copies(small: Generator) -> None:
    small.prefill(random_ids(40), POLICY)
    sets = small.report().last
    assert len(sets) == small.model.layers
    assert all(layer.dtype == np.int32 for layer in sets)
    sets[0][:] = -1
    assert small.report().last[0].min() >= 0


def test_two_generators_do_not_disturb_each_other(small: Generator, bundle: Path) -> None:
    first, second = random_ids(40, 1), random_ids(40, 2)
    expected = small.prefill(first, POLICY).copy()
    with Generator.load(bundle, context=64) as other:
        other.prefill(second, POLICY)
        np.testing.assert_array_equal(small.prefill(first, POLICY), expected)
        small.decode(3)
        assert other.length == 40


def test_an_answer_kept_by_the_caller_stays_what_it_was(small: Generator) -> None:
    kept = small.prefill(random_ids(40), POLICY)
    copy = kept.copy()
    small.decode(5)
    small.prefill(random_ids(30, 1), POLICY)
    np.testing.assert_array_equal(kept, copy)


# --- Refusals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ids", "error", "says"),
    [
        ([], InputError, "the prompt is empty"),
        ([[1, 2], [3, 4]], InputError, r"flat list of integers, but have shape \[2, 2\]"),
        ([1.5, 2.0], InputError, "flat list of integers"),
        (["a"], InputError, "flat list of integers"),
        (7, InputError, "flat list of integers"),
        ([5, -1], UnknownTokenError, "token id -1 at position 1"),
        ([5, 6, 4096], UnknownTokenError, "token id 4096 at position 2 is outside the vocabulary of 4096"),
        ([5, 2**63], UnknownTokenError, f"token id {2**63} at position 1"),
        ([5, -(2**70)], UnknownTokenError, f"token id {-(2**70)} at position 1"),
        (list(range(2, 103)), ContextOverflowError, "has 101 tokens and the context holds 100"),
    ],
)
def test_a_bad_prompt_is_refused_and_leaves_the_cache_alone(
    small: Generator, ids: Any, error: type[Exception], says: str
) -> None:
    good = random_ids(20)
    small.prefill(good, POLICY)
    calls: list[Callable[[Any, Any], object]] = [
        small.prefill,
        small.logprobs,
        lambda ids, policy: list(small.generate(ids, policy=policy)),
    ]
    for call in calls:
        with pytest.raises(error, match=says):
            call(ids, POLICY)
        assert small.length == 20
    small.prefill(good, POLICY)
    assert small.reused == 20


def test_the_context_may_be_filled_to_the_last_token(small: Generator) -> None:
    assert np.isfinite(small.prefill(random_ids(99), POLICY)).all()
    assert np.isfinite(small.decode(5)).all()
    with pytest.raises(ContextOverflowError) as caught:
        small.decode(5)
    assert (caught.value.n_prompt_tokens, caught.value.n_ctx) == (101, 100)
    assert small.length == 100


def test_decode_needs_a_prompt_and_a_known_token(small: Generator) -> None:
    with pytest.raises(InputError, match="call prefill first"):
        small.decode(5)
    small.prefill([3, 4], POLICY)
    for token in (-1, small.model.vocab_size):
        with pytest.raises(UnknownTokenError, match="outside the vocabulary"):
            small.decode(token)
    assert small.length == 2


# --- Generation -------------------------------------------------------------------------------------------


def test_a_stop_token_ends_the_answer_and_is_not_part_of_it(small: Generator) -> None:
    ids = random_ids(40)
    tokens = [e.sampled.token for e in small.generate(ids, 8, POLICY) if isinstance(e, TokenGenerated)]
    stop = tokens[3]
    small.reset()
    events = list(small.generate(ids, 8, POLICY, stop_tokens=[stop]))
    produced = tokens.index(stop)
    assert events[-1] == Finished("stop", produced)
    assert [e.sampled.token for e in events[1:-1]] == tokens[:produced]  # type: ignore[union-attr]


def test_the_answer_ends_where_the_context_does(small: Generator) -> None:
    events = list(small.generate(random_ids(97), 50, POLICY))
    assert events[-1] == Finished("length", 4)  # three fit, the fourth needs no place of its own
    assert small.length == 100


def test_an_answer_of_no_tokens(small: Generator) -> None:
    events = list(small.generate(random_ids(20), 0, POLICY))
    assert len(events) == 2
    assert events[-1] == Finished("length", 0)
    with pytest.raises(ConfigError, match="max_new_tokens must not be negative"):
        list(small.generate(random_ids(20), -1, POLICY))


def test_sampling_leaves_the_logits_of_a_repeated_prompt_alone(small: Generator) -> None:
    ids = random_ids(40)
    before = small.prefill(ids, POLICY).copy()
    for event in small.generate(ids, 1, POLICY, Sampling(repetition_penalty=3.0, logit_bias={5: 9.0})):
        if isinstance(event, Prefilled):
            assert event.reused_tokens == 40
    np.testing.assert_array_equal(small.prefill(ids, POLICY), before)


# --- Progress and cancellation ----------------------------------------------------------------------------


@h2o_and_full
def test_progress_rises_to_the_whole_prompt(small: Generator, policy: PrefillPolicy[Any]) -> None:
    seen: list[tuple[int, int]] = []
    small.prefill(random_ids(90), policy, Watch(progress=lambda done, total: seen.append((done, total))))
    done = [step for step, _ in seen]
    assert {total for _, total in seen} == {90}
    assert done == sorted(done)
    assert done[0] == 0
    assert done[-1] == 90
    assert len(set(done)) > 5


@h2o_and_full
def test_cancellation_is_asked_for_at_every_step_and_leaves_the_generator_usable(
    small: Generator, policy: PrefillPolicy[Any]
) -> None:
    ids = random_ids(90)
    expected = small.prefill(ids, policy).copy()
    asked = 0

    def count() -> bool:
        nonlocal asked
        asked += 1
        return False

    small.reset()
    small.prefill(ids, policy, Watch(cancelled=count))
    tiles = 3 * small.model.layers  # 90 tokens in tiles of 32
    steps = 6 * small.model.layers if policy is POLICY else 0  # in chunks of 16
    assert asked >= tiles + steps
    for moment in range(asked):
        small.reset()
        calls = iter(range(moment))
        with pytest.raises(Cancelled, match="prefill was stopped"):
            small.prefill(ids, policy, Watch(cancelled=lambda: next(calls, None) is None))  # noqa: B023
        assert small.length == 0
    np.testing.assert_array_equal(small.prefill(ids, policy), expected)


def test_the_timer_says_where_the_time_went(small: Generator) -> None:
    small.prefill(random_ids(90), POLICY)
    timer = small.timer
    assert min(timer.seconds[name] for name in ("dense", "phase1", "phase2", "tail")) > 0
    small.prefill(random_ids(90), POLICY)  # found whole in the cache
    assert small.timer.seconds["dense"] == 0


# --- float16 ----------------------------------------------------------------------------------------------
