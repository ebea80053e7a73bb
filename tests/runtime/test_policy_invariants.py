"""What must hold for every registered prefill policy, whatever its settings: properties on a small random model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import DTypeLike, NDArray
from tests import bundles
from tests.bundles import IntArray, random_ids, relative_error
from tests.prefill import altered, prefill_of
from tests.reference import lines
from tests.reference.subquadratic import Pattern
from tests.runtime.policy_cases import CASES

from h2o_runtime import Generator
from h2o_runtime.devices import HostDevice
from h2o_runtime.kv import KV
from h2o_runtime.operator_spec import Operator
from h2o_runtime.operators import (
    CHUNKED_INTRA_ATTENTION,
    MEMORY_FUSED_ATTENTION,
    PROMPT_ATTENTION,
    SUBQUADRATIC_ATTENTION,
    TILED_MEMORY_ATTENTION,
    VERTICAL_SLASH_ATTENTION,
)
from h2o_runtime.policies.prefill import PREFILL, Full
from h2o_runtime.policies.prefill.h2o import query_tiles

Array = NDArray[Any]
CONTEXT = 256
FULL = Full()

prompts = st.builds(random_ids, st.integers(2, 150), st.integers(0, 50))
some = settings(max_examples=5, deadline=None)
every_policy = pytest.mark.parametrize("name", PREFILL.names)


@pytest.fixture(scope="module")
def generator(shared_folder: Path) -> Iterator[Generator]:
    with Generator.load(bundles.named(shared_folder, "llama-g2-d64-llama3")[1], context=CONTEXT) as loaded:
        yield loaded


@pytest.fixture(scope="module", autouse=True)
def pasts_that_are_narrowed_early() -> Iterator[None]:
    """Where memory sets grow: with fewer candidates, in prompts as short as these."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(query_tiles, "GROWN_CANDIDATES", 2)
        yield


def test_every_registered_policy_has_its_cases() -> None:
    assert set(CASES) == set(PREFILL.names)


@every_policy
@some
@given(data=st.data(), ids=prompts)
def test_where_it_covers_everything_it_is_full_attention(
    generator: Generator, name: str, data: st.DataObject, ids: IntArray
) -> None:
    policy = data.draw(CASES[name].covering(len(ids)))
    np.testing.assert_allclose(generator.logprobs(ids, policy), generator.logprobs(ids, FULL), atol=1e-4)


@every_policy
@some
@given(data=st.data(), ids=prompts, seed=st.integers(0, 9))
def test_later_tokens_change_nothing_before_them(
    generator: Generator, name: str, data: st.DataObject, ids: IntArray, seed: int
) -> None:
    policy, first = data.draw(CASES[name].any), data.draw(st.integers(1, len(ids) - 1))
    other = ids.copy()
    other[first:] = random_ids(len(ids) - first, 1000 + seed)
    before, after = generator.logprobs(ids, policy), generator.logprobs(other, policy)
    rows = min(CASES[name].settled(policy, first), first - 1)
    np.testing.assert_allclose(after[:rows], before[:rows], atol=1e-5)


@every_policy
@some
@given(data=st.data(), ids=prompts, extra=st.integers(0, 200))
def test_the_batch_size_changes_no_result(
    generator: Generator, name: str, data: st.DataObject, ids: IntArray, extra: int
) -> None:
    policy = data.draw(CASES[name].any)
    other = altered(policy, batch_size=policy.batch_size + extra)
    np.testing.assert_allclose(generator.logprobs(ids, other), generator.logprobs(ids, policy), atol=1e-4)


@every_policy
@some
@given(data=st.data(), ids=prompts, question=st.integers(1, 60))
def test_a_shared_beginning_gives_what_a_fresh_run_gives(
    generator: Generator, name: str, data: st.DataObject, ids: IntArray, question: int
) -> None:
    policy = data.draw(CASES[name].any)
    second = np.concatenate([ids[: data.draw(st.integers(1, len(ids)))], random_ids(question, 77)])
    if len(second) > len(ids) and (second[: len(ids)] == ids).all():
        second[len(ids) - 1] ^= 1  # a conversation that goes on is another thing
    generator.reset()
    expected = generator.prefill(second, policy).copy()
    generator.reset()
    generator.prefill(ids, policy)
    got = generator.prefill(second, policy)
    assert generator.reused < len(second)
    assert relative_error(got, expected) < 1e-4


# --- What it says of itself -------------------------------------------------------------------------------


@contextmanager
def counted_pairs(generator: Generator) -> Iterator[list[int]]:
    """(query, key) pairs of every attention call while the block runs, a query head."""
    pairs: list[int] = []
    run = generator.spec.provider.run

    def patterned(n: int, kv: KV, given: dict[str, Any]) -> int:
        rows, block = given["global_rows"].tolist(), given["block_size"]
        pattern = Pattern(
            given["window"], block, rows, log_stride=bool(given["strides"]), landmarks=block > 0
        )
        seen = range(kv.length - n, kv.length)
        return sum(len(pattern.tokens(i, kv.length)) + len(pattern.marks(i, kv.length)) for i in seen)

    def along_lines(n: int, kv: KV, given: dict[str, Any]) -> int:
        found = zip(given["columns"], given["distances"], strict=True)
        return max(lines.visible(n, kv.length, *own, tiled=False).sum() for own in found)

    def inside(n: int, kv: KV | None, given: dict[str, Any]) -> int:
        size = given["chunk_size"]
        whole, last = divmod(n, size)
        return whole * (size * (size + 1) // 2) + last * (last + 1) // 2

    counts: dict[Operator, Any] = {
        CHUNKED_INTRA_ATTENTION: inside,
        MEMORY_FUSED_ATTENTION: lambda n, kv, given: n * given["memory"].shape[1],
        TILED_MEMORY_ATTENTION: lambda n, kv, given: n * given["memory"].shape[2],
        PROMPT_ATTENTION: lambda n, kv, given: sum(range(kv.length - n + 1, kv.length + 1)),
        SUBQUADRATIC_ATTENTION: patterned,
        VERTICAL_SLASH_ATTENTION: along_lines,
    }

    def counted(operator: Operator, kv: KV | None = None, **arguments: Any) -> None:
        if operator in counts:
            pairs.append(counts[operator](len(arguments["q"]), kv, arguments))
        run(operator, kv, **arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generator.spec.provider, "run", counted)
        yield pairs


def check_pairs(name: str, computed: int, told: int) -> None:
    assert computed == told if CASES[name].pairs_are_counted else 0 < computed <= told


@every_policy
@some
@given(data=st.data(), n=st.integers(1, 150))
def test_visible_pairs_are_those_that_are_computed(
    generator: Generator, name: str, data: st.DataObject, n: int
) -> None:
    policy = CASES[name].counted(data.draw(CASES[name].any))
    generator.reset()
    with counted_pairs(generator) as pairs:
        generator.prefill(random_ids(n), policy)
    others = generator.model.layers - 1
    check_pairs(name, sum(pairs), policy.visible_pairs(n) * others + policy.last_layer_pairs(n))


@every_policy
@some
@given(data=st.data(), n=st.integers(1, 150))
def test_where_all_rows_are_needed_all_are_computed(
    generator: Generator, name: str, data: st.DataObject, n: int
) -> None:
    policy = CASES[name].counted(data.draw(CASES[name].any))
    with counted_pairs(generator) as pairs:
        generator.logprobs(random_ids(n), policy)
    check_pairs(name, sum(pairs), policy.visible_pairs(n) * generator.model.layers)
    assert policy.last_layer_pairs(n) <= policy.visible_pairs(n)


@every_policy
@some
@given(data=st.data(), ids=prompts)
def test_what_is_remembered_does_not_depend_on_the_rows_that_are_needed(
    generator: Generator, name: str, data: st.DataObject, ids: IntArray
) -> None:
    policy = data.draw(CASES[name].any)
    session = generator.session
    session.prefill_state = session.state_policy = None
    generator.logprobs(ids, policy)
    assert session.logits is not None
    logits, sets, states = (
        session.logits,
        generator.report().last,
        remembered(session.prefill_state, len(ids)),
    )
    generator.reset()
    session.prefill_state = session.state_policy = None  # nothing is there from before
    assert relative_error(generator.prefill(ids, policy), logits) < 1e-5
    np.testing.assert_array_equal(generator.report().last, sets)
    for one, other in zip(remembered(session.prefill_state, len(ids)), states, strict=True):
        np.testing.assert_array_equal(one, other)


def remembered(state: Any, rows: int) -> list[Array]:
    """Scores of `rows` rows and memory sets, of those policies that have them."""
    if not hasattr(state, "score"):
        return []
    return [state.score[:, :rows].copy(), state.sets.copy(), state.set_scores.copy(), state.last.copy()]


class CountingDevice(HostDevice):
    """Adds up what is asked of it."""

    nbytes = 0

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        array = super().empty(shape, dtype)
        self.nbytes += array.nbytes
        return array

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        array = super().zeros(shape, dtype)
        self.nbytes += array.nbytes
        return array


@pytest.mark.parametrize("context", [4096, 30_000])
@every_policy
def test_state_bytes_are_those_that_are_taken(generator: Generator, name: str, context: int) -> None:
    policy, device = prefill_of(name), CountingDevice()
    policy.new_state(generator.model, context, device)
    assert policy.state_bytes(generator.model, context) == pytest.approx(device.nbytes, rel=0.05)


@every_policy
def test_its_phases_hold_all_of_its_time(generator: Generator, name: str) -> None:
    policy = prefill_of(name)
    generator.reset()
    generator.prefill(random_ids(150), policy)
    assert set(generator.timer.seconds) == {"dense", *policy.phases}
