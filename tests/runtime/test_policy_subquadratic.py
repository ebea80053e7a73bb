"""The subquadratic pattern: reference, function bodies, kernels and policies, and the crate's own numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests import bundles
from tests.reference import llama, subquadratic
from tests.reference.golden import GOLDEN
from tests.reference.subquadratic import Pattern
from tests.runtime.operator_cases import Array, Case, cases, check, provider_for

from h2o_runtime import Generator
from h2o_runtime.attention import AttentionShape
from h2o_runtime.errors import ConfigError
from h2o_runtime.kv import KV
from h2o_runtime.operators import LANDMARK_UPDATE, SUBQUADRATIC_ATTENTION
from h2o_runtime.policies.decode.subquadratic import SubquadraticDecode
from h2o_runtime.policies.prefill import Subquadratic
from h2o_runtime.policies.subquadratic import Pattern as PolicyPattern
from h2o_runtime.providers.native import NativeCpuProvider

h2o_plugins = pytest.importorskip("h2o_plugins")
NATIVE = h2o_plugins.cpu_kernels() is not None
DEFAULT = Pattern(128, 64, (0,))


def native(case: Case, isa: str | None = None) -> NativeCpuProvider:
    if not NATIVE:
        pytest.skip("the native kernels are not built")
    provider = NativeCpuProvider(2, isa)
    shape = (case.query_heads, case.kv_heads, case.d, case.scale, np.dtype(case.dtype))
    provider.activate(AttentionShape(*shape))
    return provider


def means_of(provider: Any, k: Array, v: Array, block: int, *cuts: int) -> tuple[Array, Array]:
    """Landmarks of all rows, made in several calls; what nobody wrote is not a number."""
    shape = (-(-len(k) // max(block, 1)), *k.shape[1:])
    k_mean, v_mean = np.full(shape, np.nan, np.float32), np.full(shape, np.nan, np.float32)
    for start, stop in zip((0, *cuts), (*cuts, len(k)), strict=True):
        provider.run(
            LANDMARK_UPDATE,
            KV(k, v, stop),
            k_mean=k_mean,
            v_mean=v_mean,
            start=start,
            block_size=max(block, 1),
        )
    return k_mean, v_mean


def attend(provider: Any, q: Array, k: Array, v: Array, pattern: Pattern) -> Array:
    block = pattern.block_size if pattern.landmarks else 0
    means = means_of(provider, k, v, block)
    rows, o = np.array(pattern.globals, np.int32), np.full(q.shape, np.nan, q.dtype)
    provider.run(
        SUBQUADRATIC_ATTENTION,
        KV(k, v, len(k)),
        q=q,
        k_mean=means[0],
        v_mean=means[1],
        global_rows=rows,
        window=pattern.window,
        block_size=block,
        strides=int(pattern.log_stride),
        count_bias=int(pattern.count_bias),
        o=o,
    )
    return o


patterns = st.builds(
    Pattern,
    window=st.sampled_from([0, 3, 20, 200]),
    block_size=st.sampled_from([1, 4, 10, 64]),
    globals=st.sampled_from([(), (0,), (0, 5, 7, 9999)]),
    log_stride=st.booleans(),
    landmarks=st.booleans(),
    count_bias=st.booleans(),
)


@settings(max_examples=9, deadline=None)
@given(case=cases(), pattern=patterns, past=st.integers(0, 100))
@example(case=Case(n=1, d=80, group=8), pattern=Pattern(3, 4, (0,)), past=80)
def test_bodies_and_kernels_are_the_reference(
    tiny_bundle: Path, case: Case, pattern: Pattern, past: int
) -> None:
    length = past + case.n
    q, k, v = case.q(), case.kv(length), case.kv(length)

    def reference() -> tuple[Array]:
        return (subquadratic.attention(q, k, v, pattern, scale=case.scale),)

    check(case, (attend(provider_for(tiny_bundle, case), q, k, v, pattern),), reference)
    check(case, (attend(native(case), q, k, v, pattern),), reference)


@pytest.mark.parametrize("isa", ["scalar", "avx2", "avx512", "neon"])
def test_every_instruction_set_over_several_ranges(isa: str) -> None:
    case = Case(n=700, kv_heads=2, group=3, d=24)
    try:
        provider = native(case, isa)
    except ValueError:
        pytest.skip(f"no {isa} here")
    q, k, v = case.q(), case.kv(700), case.kv(700)
    for pattern in (DEFAULT, Pattern(600, 16, (0, 70), count_bias=True)):
        got = attend(provider, q, k, v, pattern)
        check(case, (got,), lambda: (subquadratic.attention(q, k, v, pattern, scale=case.scale),))  # noqa: B023
        step = attend(provider, q[-1:], k, v, pattern)
        np.testing.assert_allclose(step, got[-1:], atol=1e-5)


@settings(max_examples=9, deadline=None)
@given(case=cases(), block=st.integers(1, 30), data=st.data())
def test_landmarks_row_by_row_are_those_made_at_once(
    tiny_bundle: Path, case: Case, block: int, data: st.DataObject
) -> None:
    k, v = case.kv(), case.kv()
    cuts = sorted(data.draw(st.sets(st.integers(0, case.n))))
    for provider, exact in ((native(case), True), (provider_for(tiny_bundle, case), False)):
        at_once, in_turns = means_of(provider, k, v, block), means_of(provider, k, v, block, *cuts)
        for rows, one, other in zip((k, v), at_once, in_turns, strict=True):
            np.testing.assert_allclose(one, subquadratic.block_means(rows, block), atol=1e-5)
            np.testing.assert_allclose(other, one, atol=0 if exact else 1e-5)


# --- The crate's own numbers ------------------------------------------------------------------------------


def case_of(q: Array, k: Array) -> Case:
    return Case(n=len(q), kv_heads=k.shape[1], group=q.shape[1] // k.shape[1], d=q.shape[2], spread=1.0)


def pattern_of(entry: dict[str, Any]) -> Pattern:
    names = ("window", "block_size", "globals", "causal", "log_stride", "landmarks")
    return Pattern(**{name: entry[name] for name in names})


def test_prompts_of_the_crate(tiny_bundle: Path) -> None:
    """Not causal ones too, by the reference alone: no decoder has them."""
    folder = GOLDEN / "ruvllm"
    for entry in json.loads((folder / "out" / "manifest.json").read_text())["forward"]:
        q, k, v = (np.load(folder / "in" / f"{entry['input']}_{name}.npy") for name in "qkv")
        expected = np.load(folder / "out" / f"fwd_{entry['name']}.npy")
        pattern, case = pattern_of(entry), case_of(q, k)
        found = [subquadratic.attention(q, k, v, pattern, scale=case.scale)]
        assert pattern.edges(len(q)) == entry["edges_per_head"], entry["name"]
        if pattern.causal:
            found += [attend(provider_for(tiny_bundle, case), q, k, v, pattern)]
            found += [attend(native(case), q, k, v, pattern)] if NATIVE else []
        for o in found:
            np.testing.assert_allclose(o, expected, atol=2e-6, err_msg=entry["name"])


def test_steps_of_the_crate() -> None:
    folder = GOLDEN / "ruvllm"
    q, k, v = (np.load(folder / "in" / f"s2_{name}.npy") for name in "qkv")
    case = case_of(q, k)
    provider = native(case)
    for entry in json.loads((folder / "out" / "manifest.json").read_text())["decode"]:
        pattern, name = pattern_of(entry), entry["name"]
        expected = np.load(folder / "out" / f"dec_{name}.npy")
        for i in range(50, 150):
            o = attend(provider, q[i : i + 1], k[: i + 1], v[: i + 1], pattern)
            np.testing.assert_allclose(o[0], expected[i - 50], atol=2e-6, err_msg=f"{name} {i}")
    for kind, means in zip(("keys", "values"), means_of(provider, k, v, 16, 50, 51, 99), strict=True):
        np.testing.assert_allclose(means, np.load(folder / "out" / f"dec_landmark_{kind}.npy"), atol=1e-6)


@settings(max_examples=12, deadline=None)
@given(n=st.integers(1, 120), window=st.integers(0, 20), tokens=st.integers(0, 30), block=st.integers(0, 12))
@example(n=100, window=3, tokens=20, block=4)
def test_what_a_policy_says_that_it_sees(n: int, window: int, tokens: int, block: int) -> None:
    for strides in (False, True):
        told = PolicyPattern(window, tokens, strides, block, False).visible(n)
        pattern = Pattern(window, block, range(tokens), log_stride=strides, landmarks=block > 0)
        assert told.tolist() == [len(pattern.tokens(i, n)) + len(pattern.marks(i, n)) for i in range(n)]


# --- The policies -----------------------------------------------------------------------------------------

SMALL = {"window": 9, "global_tokens": 2, "block": 8}


def test_a_prompt_is_the_references(shared_folder: Path) -> None:
    checkpoint, bundle = bundles.named(shared_folder, "llama-g2-d64-llama3")
    model, ids = bundles.reference_model(checkpoint), bundles.random_ids(300)

    def attend(q: Array, k: Array, v: Array) -> Array:
        return subquadratic.attention(q, k, v, Pattern(20, 16, (0,)), scale=model.scale)

    expected = llama.logprobs_of(model, llama.hidden_under(attend, model, ids), ids)
    with Generator.load(bundle, context=300) as generator:
        found = generator.logprobs(ids, Subquadratic(window=20, block=16))
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_a_step_sees_what_a_prompts_row_sees(shared_folder: Path) -> None:
    """Prompt then tokens, a shared beginning then tokens: always what one prompt gives."""
    decoding, policy = SubquadraticDecode(**SMALL), Subquadratic(**SMALL)
    bundle = bundles.named(shared_folder, "llama-g2-d64-llama3")[1]
    with Generator.load(bundle, context=256, decoding=decoding) as generator:
        ids = bundles.random_ids(150)
        generator.prefill(ids, policy)
        ids[60:] = bundles.random_ids(90, 5)
        for prompt in (67, 61):
            logits = generator.prefill(ids[:prompt], policy)
            for token in ids[prompt:90]:
                logits = generator.decode(int(token))
            got = logits.copy()
            generator.reset()
            assert bundles.relative_error(got, generator.prefill(ids[:90], policy)) < 1e-5


def test_bad_values_say_what_to_change(shared_folder: Path) -> None:
    for kind in (Subquadratic, SubquadraticDecode):
        with pytest.raises(ConfigError, match="block must be at least 0"):
            kind(block=-1)
        with pytest.raises(ConfigError, match="window must be at least 0"):
            kind(window=-1)
    bundle = bundles.named(shared_folder, "llama-g2-d64-llama3")[1]
    with Generator.load(bundle, context=64) as generator, pytest.raises(ConfigError, match="lower window"):
        generator.prefill(bundles.random_ids(10), Subquadratic(window=65))
