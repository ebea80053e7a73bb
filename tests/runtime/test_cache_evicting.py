"""The evicting cache: what it evicts, what it never does, and that all else is as it was."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests import bundles
from tests.reference import operators
from tests.reference.golden import GOLDEN
from tests.runtime.operator_cases import Case, cases, check, provider_for
from tests.runtime.test_policy_subquadratic import NATIVE, native

from h2o_runtime import Generator
from h2o_runtime.caches import Evicting
from h2o_runtime.caches.evicting import EvictingStore, Memory, Rule
from h2o_runtime.errors import Cancelled, ConfigError, InputError
from h2o_runtime.execution.reading import Watch
from h2o_runtime.kv import KV
from h2o_runtime.operators import SCORED_ATTENTION
from h2o_runtime.policies.decode.quest import Quest
from h2o_runtime.policies.prefill import Full, PrefillPolicy, Query
from h2o_runtime.sessions.saved import SavedSession, save_session

FULL = Full(batch_size=64)
SPARSE = Query(chunk_size=32, batch_size=64, local=8, heavy=8, dense_tail=4)
CONTEXT, ROWS = 400, 60
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def bundle(shared_folder: Path) -> Path:
    return bundles.named(shared_folder, "llama-g2-d64-llama3")[1]


def bounded(bundle: Path, rows: int = ROWS, context: int = CONTEXT, **options: Any) -> Generator:
    cache = Evicting(tokens=rows, **options)
    return Generator.load(bundle, context=context, threads=1, cache=cache, device="cpu")


def plain(bundle: Path) -> Generator:
    return Generator.load(bundle, context=CONTEXT, threads=1, device="cpu")


# --- The rule ---------------------------------------------------------------------------------------------


def replayed(entry: dict[str, object], keep: int) -> tuple[list[list[int]], list[list[int]]]:
    """Tokens that are kept after each one: ours, with the scores that the crate was given, and the crate's."""
    folder, memory = GOLDEN / "ruvllm", Memory(1, 32, Rule(6, keep))
    slots = np.load(folder / "out" / f"ev_{entry['name']}_slot_ids.npy").astype(int)
    scores = np.load(folder / "in" / f"{entry['scores']}.npy")
    ours = []
    for token in range(80):
        order = np.argsort(memory.tokens[0]) if token >= 32 else np.arange(32)
        memory.score[0, order] = scores[token]  # its slots are in the order of the text
        memory.place(token)
        ours.append(sorted(memory.tokens[0, : min(token + 1, 32)].tolist()))
    return ours, [row[row >= 0].tolist() for row in slots]


def test_slot_by_slot_as_the_crate() -> None:
    entries = json.loads((GOLDEN / "ruvllm" / "out" / "manifest.json").read_text())["evict"]
    by_name = {entry["name"]: entry for entry in entries}
    for name in ("e0_random_scores", "e3_h2o_accumulated"):
        ours, theirs = replayed(by_name[name], keep=1)
        assert ours == theirs, name
    # The crate protects slots: once one before it goes, token 20 is in another slot, and lost. Ours are tokens.
    ours, theirs = replayed(by_name["e1_global_not_prefix"], keep=21)
    assert 20 not in theirs[-1]
    assert set(range(21)) <= set(ours[-1])
    # Where its window covers all, the first token goes at every step. Ours is no configuration.
    assert by_name["e2_window_ge_capacity"]["window"] >= 32
    with pytest.raises(ConfigError, match="protects every token"):
        Evicting(tokens=32, recent=64, keep=1)


@settings(max_examples=30, deadline=None)
@given(data=st.data(), rows=st.integers(2, 12), layers=st.integers(1, 3), seed=st.integers(0, 99))
def test_what_is_protected_stays(data: st.DataObject, rows: int, layers: int, seed: int) -> None:
    recent = data.draw(st.integers(0, rows - 1))
    keep = data.draw(st.integers(0, rows - 1 - recent))
    prompt = data.draw(st.integers(0, 20))
    rng, memory = np.random.default_rng(seed), Memory(layers, rows, Rule(recent, keep))
    for layer in range(layers):
        memory.read(layer, rng.integers(0, 3, prompt).astype(float))
    for token in range(prompt, prompt + 20):
        held, before = min(token, rows), memory.tokens.copy()
        places = memory.place(token)
        memory.saw(rng.random((layers, min(token + 1, rows)), np.float32))
        for layer in range(layers):
            kept = memory.tokens[layer, : min(token + 1, rows)]
            assert len(set(kept)) == len(kept)
            assert {*range(min(keep, token)), *range(max(token - recent, 0), token + 1)} <= set(kept)
            unchanged = np.arange(held) != places[layer]
            np.testing.assert_array_equal(kept[:held][unchanged], before[layer, :held][unchanged])


def test_scores_that_are_none() -> None:
    with pytest.raises(ValueError, match="not a number"):
        Rule(0, 0).victims(np.arange(3)[None], np.array([[1.0, np.nan, 2.0]]), 3)


# --- Its scores -------------------------------------------------------------------------------------------


@settings(max_examples=8, deadline=None)
@given(case=cases(), length=st.integers(1, 1100))
@example(case=Case(group=8, d=80), length=513)
@example(case=Case(group=17, d=32), length=40)
def test_attention_tells_what_it_saw(tiny_bundle: Path, case: Case, length: int) -> None:
    q, k, v = case.q(1), case.kv(length + 3), case.kv(length + 3)
    k[length:] = v[length:] = np.nan  # what is not in use is not read

    def reference() -> tuple[np.ndarray, ...]:
        o = operators.cached_attention(q, k[:length], v[:length], length, scale=case.scale)
        _, seen = operators.candidate_score(
            q, k[:length], np.zeros((case.kv_heads, 0, case.d), k.dtype), scale=case.scale
        )
        return o, seen

    for provider in (provider_for(tiny_bundle, case), *([native(case)] if NATIVE else ())):
        o = np.full_like(q, np.nan)
        seen = np.full((length + 3, case.kv_heads), 7.0, np.float32)
        provider.run(
            SCORED_ATTENTION, KV(k, v, length, seen=seen), q=q, o=o, seen=KV(k, v, length, seen=seen).seen
        )
        check(case, (o, seen[:length]), reference)
        assert (seen[length:] == 7).all()


# --- The cache --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [FULL, SPARSE], ids=["full", "sparse"])
def test_nothing_changes_before_something_is_evicted(bundle: Path, policy: PrefillPolicy[Any]) -> None:
    first, more = bundles.random_ids(40, 1).tolist(), bundles.random_ids(10, 2).tolist()
    with bounded(bundle) as generator, plain(bundle) as other:
        for one in (generator, other):
            one.answers = [
                one.prefill(first, policy).copy(),
                *(one.decode(token).copy() for token in (5, 6, 7)),
            ]
            one.answers += [one.prefill([*first, 5, 6, 7, *more], policy).copy()]
            assert one.reused > 0
            one.answers += [one.decode(8).copy() for _ in range(ROWS - one.length)]
        for ours, theirs in zip(generator.answers, other.answers, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        assert generator.spec.forgets(generator.length) == 0
        generator.decode(8)
        assert generator.spec.forgets(generator.length) == 1


@pytest.mark.parametrize("n", [20, ROWS, 150])
def test_rows_keep_the_rotation_of_their_token(bundle: Path, n: int) -> None:
    """Keys of the first layer depend on token and position alone."""
    prompt, answer = bundles.random_ids(n, 1).tolist(), bundles.random_ids(100, 2).tolist()
    with bounded(bundle, keep=3, recent=11) as generator, plain(bundle) as other:
        for one in (generator, other):
            one.prefill(prompt, FULL)
            for token in answer:
                one.decode(token)
        store = generator.session.store
        assert isinstance(store, EvictingStore)
        with other.session.store.open(0) as theirs:
            keys = theirs.view(n + 100).k
        tokens = store.memory.tokens
        np.testing.assert_array_equal(store.cached[0]["k"], keys[tokens[0]])
        for kept in tokens:
            assert {0, 1, 2, *range(n + 88, n + 100)} <= set(kept)
            assert len(set(kept)) == ROWS
        assert (tokens[0] != tokens[1]).any()  # each layer chooses for itself
        assert np.isfinite(generator.decode(5)).all()


def test_a_long_prompt_is_read_as_if_nothing_were_evicted(bundle: Path) -> None:
    prompt = bundles.random_ids(300, 1).tolist()
    with bounded(bundle) as generator, plain(bundle) as other:
        for policy in (FULL, SPARSE):
            np.testing.assert_array_equal(generator.prefill(prompt, policy), other.prefill(prompt, policy))
            alike = []
            for step in range(3):
                ours, theirs = generator.decode(step + 5), other.decode(step + 5)
                assert (ours != theirs).any()
                alike.append(np.corrcoef(ours, theirs)[0, 1])
            assert np.mean(alike) > 0.6  # single steps of a random model: 0.45 to 0.88
        # What goes on from tokens that are gone is read anew, and is then what a fresh run gives.
        longer = [*prompt, *generator.session.tokens[300:303].tolist(), 9]
        logits = generator.prefill(longer, FULL)
        assert generator.reused == 0
        other.reset()
        np.testing.assert_array_equal(logits, other.prefill(longer, FULL))


def test_a_prompt_that_was_stopped_leaves_nothing_behind(bundle: Path) -> None:
    """Some layers would know all of the rows before it, others not."""
    first, longer = bundles.random_ids(40, 1).tolist(), bundles.random_ids(200, 2).tolist()
    with bounded(bundle) as generator, plain(bundle) as other:
        generator.prefill(first, FULL)
        calls = iter(range(10**6))
        with pytest.raises(Cancelled):
            generator.prefill([*first, *longer], FULL, Watch(cancelled=lambda: next(calls) > 6))
        assert generator.length == 0
        np.testing.assert_array_equal(generator.prefill(first, FULL), other.prefill(first, FULL))


# In a process of its own: a test worker's memory moves with what ran before. Without torch, which tests import.
MANY_TOKENS = """
import sys
from pathlib import Path

import numpy as np
from h2o_runtime import Generator
from h2o_runtime.caches import Evicting
from h2o_runtime.policies.prefill import Full
from h2o_runtime.process import resident_bytes

cache = Evicting(tokens=64)
with Generator.load(Path(sys.argv[1]), context=5_200, threads=1, cache=cache, device="cpu") as generator:
    generator.prefill(range(2, 102), Full())
    for token in range(5_000):
        logits = generator.decode(token % 200 + 2)
        if token in (1_000, 4_999):
            print(resident_bytes())
    assert generator.spec.forgets(generator.length) == 5_036
    assert np.isfinite(logits).all()
"""


def test_memory_is_flat_over_5_000_tokens(shared_folder: Path) -> None:
    tiny = bundles.named(shared_folder, "llama-g1-d32")[1]
    command = [sys.executable, "-c", MANY_TOKENS, str(tiny)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    early, late = map(int, done.stdout.split())
    assert late - early < 1 << 20  # all rows of two layers would take 2 MB


def test_a_gpu_evicts_alike(bundle: Path, dense_graphs_wait: None) -> None:
    cache = Evicting(tokens=ROWS)
    with Generator.load(bundle, context=CONTEXT, device="cuda", cache=cache) as gpu, bounded(bundle) as cpu:
        for n in (50, 90):
            for one in (gpu, cpu):
                one.reset()
                one.answers = [one.prefill(bundles.random_ids(n, 3), FULL).copy()]
                one.answers += [one.decode(token).copy() for token in range(5, 18)]
            for ours, theirs in zip(gpu.answers, cpu.answers, strict=True):
                assert np.abs(ours - theirs).max() <= 2e-5 * np.abs(theirs).max()
            np.testing.assert_array_equal(gpu.session.store.memory.tokens, cpu.session.store.memory.tokens)


# --- What does not go together ----------------------------------------------------------------------------


def test_what_does_not_go_together_is_one_sentence(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="use `decode=full`"):
        Generator.load(bundle, cache=Evicting(tokens=ROWS), decoding=Quest(budget=16))
    with pytest.raises(ConfigError, match="`cache_pool` and `cache_dir` store whole conversations"):
        Generator.load(bundle, cache=Evicting(tokens=ROWS), pool_bytes=1)
    with bounded(bundle) as generator, plain(bundle) as other:
        generator.prefill(bundles.random_ids(ROWS, 1), FULL)
        save_session(generator.session, tmp_path / "whole")
        generator.decode(5)
        with pytest.raises(
            ConfigError, match=r"evicted 1 of .* tokens, and only a whole session can be saved"
        ):
            save_session(generator.session, tmp_path / "part")
        SavedSession.open(tmp_path / "whole").load_into(other.session, FULL)
        SavedSession.open(tmp_path / "whole").load_into(generator.session, FULL)
        assert np.isfinite(generator.decode(7)).all()
        other.decode(7)
        save_session(other.session, tmp_path / "longer")
        with pytest.raises(InputError, match="this run keeps fewer"):
            SavedSession.open(tmp_path / "longer").load_into(generator.session, FULL)


def test_half_of_the_tokens_are_recent_ones_unless_told() -> None:
    assert Evicting(tokens=ROWS, keep=9).rule == Rule(ROWS // 2, 9)
    assert Evicting(tokens=ROWS, recent=0).rule == Rule(0, 4)
