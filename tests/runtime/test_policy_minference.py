"""Vertical-slash prefill: reference, function bodies, kernels, policy, and a published implementation's numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests import bundles
from tests.prefill import altered, prefill_of
from tests.reference import lines, llama
from tests.reference.golden import GOLDEN
from tests.runtime.operator_cases import Array, Case, cases, check, provider_for
from tests.runtime.test_policy_subquadratic import case_of, native

from h2o_runtime import Generator
from h2o_runtime.errors import ConfigError
from h2o_runtime.kv import KV
from h2o_runtime.operators import VERTICAL_SLASH_ATTENTION, VERTICAL_SLASH_SELECT
from h2o_runtime.policies.prefill import VerticalSlash
from h2o_runtime.policies.prefill.minference import VOTES


def select(
    provider: Any, q: Array, k: Array, vertical: int, slash: int, sink: int = 30, near: int = 100
) -> lines.Lines:
    columns, distances = (np.full((q.shape[1], count), -7, np.int32) for count in (vertical, slash))
    provider.run(
        VERTICAL_SLASH_SELECT,
        KV(k, k, len(k)),
        q=q,
        sink=sink,
        near=near,
        columns=columns,
        distances=distances,
    )
    return columns, distances


def attend(provider: Any, q: Array, k: Array, v: Array, found: lines.Lines) -> Array:
    o = np.full_like(q, np.nan)
    columns, distances = found
    provider.run(VERTICAL_SLASH_ATTENTION, KV(k, v, len(k)), q=q, columns=columns, distances=distances, o=o)
    return o


def same_but_for_near_ties(mine: Array, theirs: Array, score: Array) -> bool:
    """Rising, as many as there are, and entries that differ have sums that float32 cannot tell apart."""
    for got, expected, own in zip(mine, theirs, score, strict=True):
        kept = got[got >= 0]
        if (np.diff(kept) <= 0).any() or len(kept) != (expected >= 0).sum() or (got[len(kept) :] != -1).any():
            return False
        swapped = sorted(set(got.tolist()) ^ set(expected.tolist()))
        if swapped and np.ptp(own[swapped]) > 1e-5 * own.max():
            return False
    return True


@settings(max_examples=11, deadline=None)
@given(
    case=cases(),
    n=st.integers(1, 64),
    past=st.integers(0, 120),
    vertical=st.integers(1, 60),
    slash=st.integers(1, 60),
    forced=st.integers(0, 30),
)
@example(case=Case(group=8, d=80), n=7, past=33, vertical=9, slash=300, forced=100)
@example(case=Case(kv_heads=1, group=1, spread=0.0), n=64, past=0, vertical=5, slash=70, forced=2)
def test_lines_are_those_of_the_highest_sums(
    tiny_bundle: Path, case: Case, n: int, past: int, vertical: int, slash: int, forced: int
) -> None:
    q, k = case.q(n), case.kv(past + n)
    scores = lines.scores(q, k, scale=case.scale)
    expected = lines.select(q, k, vertical, slash, scale=case.scale, sink=forced, near=2 * forced)
    for provider in (native(case), provider_for(tiny_bundle, case)):
        found = select(provider, q, k, vertical, slash, forced, 2 * forced)
        for mine, theirs, score in zip(found, expected, scores, strict=True):
            assert same_but_for_near_ties(mine, theirs, score)


def some_lines(case: Case, length: int, draw: np.random.Generator) -> lines.Lines:
    """Rising numbers below `length`, with -1 at the end; distance 0 may be missing."""
    found = []
    for count in draw.integers(1, min(length, 40) + 1, 2):
        rows = np.full((case.query_heads, count), -1, np.int32)
        for row in rows:
            some = draw.integers(1, count + 1)
            row[:some] = np.sort(draw.choice(length, some, replace=False))
        found.append(rows)
    return found[0], found[1]


@settings(max_examples=11, deadline=None)
@given(case=cases(), n=st.integers(1, 300), past=st.integers(0, 400), seed=st.integers(0, 99))
@example(case=Case(kv_heads=2, group=3, d=24), n=700, past=129, seed=0)
@example(case=Case(kv_heads=1, group=1), n=1, past=0, seed=1)
def test_tiles_see_their_runs_and_columns(
    tiny_bundle: Path, case: Case, n: int, past: int, seed: int
) -> None:
    q, k, v = case.q(n), case.kv(past + n), case.kv(past + n)
    found = some_lines(case, past + n, np.random.default_rng(seed))

    def reference() -> tuple[Array]:
        return (lines.attention(q, k, v, found, scale=case.scale),)

    check(case, (attend(native(case), q, k, v, found),), reference)
    check(case, (attend(provider_for(tiny_bundle, case), q, k, v, found),), reference)


@pytest.mark.parametrize("isa", ["scalar", "avx2", "avx512", "neon"])
def test_every_instruction_set(isa: str) -> None:
    case = Case(kv_heads=2, group=3, d=24)
    try:
        provider = native(case, isa)
    except ValueError:
        pytest.skip(f"no {isa} here")
    q, k, v = case.q(450), case.kv(700), case.kv(700)
    found = select(provider, q[-64:], k, 40, 90)
    expected = lines.select(q[-64:], k, 40, 90, scale=case.scale)
    for mine, theirs, score in zip(found, expected, lines.scores(q[-64:], k, scale=case.scale), strict=True):
        assert same_but_for_near_ties(mine, theirs, score)
    o = attend(provider, q, k, v, found)
    check(case, (o,), lambda: (lines.attention(q, k, v, found, scale=case.scale),))


def test_published_lines_and_outputs(tiny_bundle: Path) -> None:
    folder = GOLDEN / "minference"
    q, k, v = (np.load(folder / f"struct_{name}.npy") for name in "qkv")
    case, published = case_of(q, k), np.load(folder / "struct_indices.npz")
    for name, chunk in (("whole", 1000), ("chunk128", 128)):
        exact = np.load(folder / f"struct_out_{name}_exact.npy")
        expected = np.load(folder / f"struct_out_{name}_blocks.npy")
        for provider in (native(case), provider_for(tiny_bundle, case)):
            o, once = np.empty_like(q), np.empty_like(q)
            for start in range(0, 1000, chunk):
                stop = min(start + chunk, 1000)
                rows = slice(start, stop)
                found = select(provider, q[max(start, stop - 64) : stop], k[:stop], 40, 140)
                for h in range(2):
                    for kind, mine in zip("VS", found, strict=True):
                        key = f"{kind}_{start}_{stop}_h{h}"
                        if key in published:  # diagonals fall there
                            np.testing.assert_array_equal(np.sort(published[key]), mine[h][mine[h] >= 0])
                o[rows] = attend(provider, q[rows], k[:stop], v[:stop], found)
                once[rows] = lines.attention(
                    q[rows], k[:stop], v[:stop], found, scale=case.scale, tiled=False
                )
            np.testing.assert_allclose(o, expected, atol=1e-5)
            np.testing.assert_allclose(once, exact, atol=1e-5)


# --- The policy -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bundle(shared_folder: Path) -> Path:
    return bundles.named(shared_folder, "llama-g2-d64-llama3")[1]


def test_a_fraction_of_the_keys_is_a_budget() -> None:
    by_counts, by_share = (VerticalSlash(), VerticalSlash(fraction=0.3))
    assert by_counts.line_counts(100) == (100, 100)
    assert by_counts.line_counts(8192) == (512, 1024)
    assert by_share.line_counts(1000) == (60, 240)
    assert by_share.line_counts(100) == (31, 100)
    assert VerticalSlash(vertical=1, slash=1).line_counts(1000) == (30, 50)


def test_a_prompt_is_the_reference_of_every_chunk(bundle: Path, shared_folder: Path) -> None:
    policy, ids = VerticalSlash(chunk_size=100, vertical=40, slash=60), bundles.random_ids(300)
    model = bundles.reference_model(bundles.named(shared_folder, "llama-g2-d64-llama3")[0])

    def attend(q: Array, k: Array, v: Array) -> Array:
        parts = []
        for start in range(0, len(q), policy.chunk_size):
            stop = min(start + policy.chunk_size, len(q))
            votes = q[max(start, stop - VOTES) : stop]
            found = lines.select(votes, k[:stop], *policy.line_counts(stop), scale=model.scale)
            parts.append(lines.attention(q[start:stop], k[:stop], v[:stop], found, scale=model.scale))
        return np.concatenate(parts)

    expected = llama.logprobs_of(model, llama.hidden_under(attend, model, ids), ids)
    with Generator.load(bundle, context=300) as generator:
        np.testing.assert_allclose(generator.logprobs(ids, policy), expected, atol=1e-4)


def test_lines_of_the_whole_prompt_keep_nothing_for_another(bundle: Path) -> None:
    """As published: an early row depends on the prompt's end, so that a shared beginning runs again."""
    policy = VerticalSlash(chunk_size=70, vertical=40, slash=50, estimate="prompt", batch_size=90)
    ids = bundles.random_ids(400)
    other = ids.copy()
    other[300:] = bundles.random_ids(100, 5)
    with Generator.load(bundle, context=500) as generator:
        one, two = generator.logprobs(ids, policy), generator.logprobs(other, policy)
        assert np.abs(one[:250] - two[:250]).max() > 1e-3
        fresh = generator.prefill(other, policy).copy()
        np.testing.assert_allclose(generator.logprobs(ids, altered(policy, chunk_size=1000)), one, atol=1e-4)
        generator.reset()
        generator.prefill(ids, policy)
        assert bundles.relative_error(generator.prefill(other, policy), fresh) < 1e-5
        assert generator.reused == 0
        by_chunks = altered(policy, estimate="chunk", chunk_size=128)
        generator.prefill(ids, by_chunks)
        generator.prefill(other, by_chunks)
        assert generator.reused == 256


def test_bad_values_say_what_to_change() -> None:
    for name in ("vertical", "slash"):
        with pytest.raises(ConfigError, match=f"{name} must be at least 1"):
            prefill_of(policy="minference", **{name: 0})
    with pytest.raises(ConfigError, match="must be at most 1, which is all keys"):
        VerticalSlash(fraction=1.5)
    with pytest.raises(ConfigError, match="fraction must be a number of at least 0"):
        VerticalSlash(fraction=-0.1)
