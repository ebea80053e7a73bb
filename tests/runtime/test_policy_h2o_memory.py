"""What must hold for the h2o policy and its memory, whatever its sizes: properties on small random models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests import bundles
from tests.bundles import IntArray, random_ids, relative_error
from tests.reference import llama, operators
from tests.runtime.policy_cases import h2o_policies

from h2o_runtime import Generator
from h2o_runtime.attention import AttentionShape
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.caches.reuse import Prefix
from h2o_runtime.devices import HostDevice
from h2o_runtime.devices.timings import PrefillTimer
from h2o_runtime.kv import KV
from h2o_runtime.policies.prefill import ColumnSum, LayerCall, Query, Window
from h2o_runtime.policies.prefill.h2o import H2O
from h2o_runtime.providers.functions import FunctionProvider

Array = NDArray[Any]
CONTEXT = 256
KEPT = ("colsum", "window")  # rules whose memory comes from the one before


@pytest.fixture(scope="module", params=("llama-g2-d64-llama3", "qwen2-g4-d32"))  # qwen2: 8 query heads on 2
def checkpoint(request: pytest.FixtureRequest, shared_folder: Path) -> Path:
    return bundles.named(shared_folder, request.param)[0]


@pytest.fixture(scope="module")
def generator(checkpoint: Path, shared_folder: Path) -> Iterator[Generator]:
    bundle = shared_folder / checkpoint.name.replace("checkpoint", "bundle")
    with Generator.load(bundle, context=CONTEXT) as loaded:
        yield loaded


prompts = st.builds(random_ids, st.integers(2, 150), st.integers(0, 50))
every = settings(max_examples=11, deadline=None)


def cached_rows(generator: Generator, length: int) -> tuple[list[Array], list[Array]]:
    """Each layer's keys and values [length, Hkv, d], in float64."""
    layers = [generator.session.store.open(layer).view(length) for layer in range(generator.model.layers)]
    rows = [(kv.k[:length].astype(np.float64), kv.tensors["v"][:length].astype(np.float64)) for kv in layers]
    return [k for k, _ in rows], [v for _, v in rows]


# --- Where sparse prefill is full attention ---------------------------------------------------------------


@settings(max_examples=12, deadline=None)
@given(
    policy=h2o_policies(tails=(0,), scores=KEPT),
    share=st.floats(0, 1),
    n=st.integers(1, 90),
    native=st.booleans(),
    seed=st.integers(0, 99),
)
def test_a_memory_of_the_whole_past_is_full_attention(
    generator: Generator, policy: H2O[Any], share: float, n: int, native: bool, seed: int
) -> None:
    """A history of at most M tokens is remembered whole, so the first chunk after it misses nothing."""
    model = generator.model
    past = max(1, int(share * policy.memory_at(0)))
    rng = np.random.default_rng(seed)
    device = HostDevice()
    shape = (past + n, model.kv_heads, model.head_size)
    k, v = (rng.normal(size=shape).astype(np.float32) for _ in range(2))
    q = 2 * rng.normal(size=(n, model.query_heads, model.head_size)).astype(np.float32)
    provider: Any = generator.spec.provider
    if not native:
        provider = FunctionProvider(Bundle.open(generator.bundle.folder), threads=2)
        provider.activate(
            AttentionShape(
                model.query_heads, model.kv_heads, model.head_size, model.scale, np.dtype(np.float32)
            )
        )
    o = np.full_like(q, np.nan)
    call = LayerCall(
        layer=0,
        q=q,
        o=o,
        k=k[past:],
        v=v[past:],
        kv=KV(k, v, past + n),
        past=past,
        prefix=Prefix.HISTORY,
        provider=provider,
        timer=PrefillTimer(),
        flow=device.flow([]),
        checkpoint=lambda done: None,
    )
    policy.attend(call, policy.new_state(model, past + n, device))
    expected = operators.cached_attention(q, k, v, past + n, scale=model.scale)
    first = slice(0, policy.chunk_size)
    np.testing.assert_allclose(o[first], expected[first], atol=2e-5 * np.abs(expected).max())
    assert np.isfinite(o).all()


# --- Memory sets and scores -------------------------------------------------------------------------------


@every
@given(policy=h2o_policies(scores=KEPT), ids=prompts)
def test_memory_sets_are_sorted_unique_in_range_and_hold_the_window(
    generator: Generator, policy: H2O[Any], ids: IntArray
) -> None:
    generator.reset()
    generator.prefill(ids, policy)
    boundaries = (len(ids) - 1) // policy.chunk_size
    heads = generator.model.query_heads if policy.heads == "query" else generator.model.kv_heads
    sets = generator.boundary_memory()
    assert sets.shape == (generator.model.layers, boundaries, heads, policy.memory)
    assert sets.dtype == np.int32
    for boundary in range(boundaries):
        end = (boundary + 1) * policy.chunk_size
        here = sets[:, boundary].reshape(-1, policy.memory)
        assert (np.diff(here, axis=1) > 0).all()
        assert here.min() >= 0
        assert here.max() < end
        np.testing.assert_array_equal(
            here[:, -policy.local :],
            np.broadcast_to(np.arange(end - policy.local, end), (len(here), policy.local)),
        )
    if boundaries:
        np.testing.assert_array_equal(np.stack(generator.report().last), sets[:, -1])


# --- Conversations ----------------------------------------------------------------------------------------


@settings(max_examples=9, deadline=None)
@given(
    policy=h2o_policies(scores=KEPT),
    first=st.integers(1, 120),
    answer=st.integers(0, 20),
    new=st.integers(1, 100),
    seed=st.integers(0, 99),
)
def test_a_conversations_next_turn(
    generator: Generator, checkpoint: Path, policy: H2O[Any], first: int, answer: int, new: int, seed: int
) -> None:
    """At most S new tokens attend to the cache as it is; more are chunks behind a memory of the history."""
    everything = random_ids(first + answer + new, seed)
    past = first + answer
    generator.reset()
    generator.prefill(everything[:first], policy)
    for token in everything[first:past].tolist():
        generator.decode(token)
    keys, values = cached_rows(generator, past)
    state = generator.session.prefill_state
    scores = [array[:past].astype(np.float64) for array in state.score]
    got = generator.prefill(everything, policy)
    assert generator.reused == past

    model = bundles.reference_model(checkpoint)
    x = model.weights["model.embed_tokens.weight"][everything[past:]]
    for layer in range(model.layers):
        q, k, v = llama.project_qkv(model, layer, x, past)
        k, v = np.concatenate([keys[layer], k]), np.concatenate([values[layer], v])
        attention = (
            operators.cached_attention(q, k, v, past + new, scale=model.scale)
            if new <= policy.chunk_size
            else chunks_after_history(q, k, v, scores[layer], first, policy, model.scale)
        )
        x = llama.finish_layer(model, layer, x, attention)
    expected = llama.logits_of(model, llama.final_norm(model, x[-1:]))[0]
    assert relative_error(got, expected) < 1e-4


def chunks_after_history(
    q: Array, k: Array, v: Array, score: Array, prompt: int, policy: H2O[Any], scale: float
) -> Array:
    """Attention [n, Hq, d] of new tokens in chunks; of the history, positions from `prompt` on were generated."""
    past, length, heads = len(k) - len(q), len(k), score.shape[1]
    score = np.concatenate([score, np.zeros((len(q), heads))])
    score[prompt:past] = 0.0  # decode keeps no scores
    memory = np.tile(np.arange(past, dtype=np.int32), (heads, 1))
    sizes: dict[str, int] = {"local": policy.local, "heavy": policy.heavy}
    if past > policy.memory:
        ranked = score.copy()
        # Generated tokens count as local: they come before all others, the latest first.
        ranked[prompt : past - policy.local][-policy.heavy or past :] = np.inf
        memory = select(ranked, memory[:, :0], 0, past, sizes)
    o = np.empty_like(q)
    for start in range(past, length, policy.chunk_size):
        stop = min(start + policy.chunk_size, length)
        rows, new = slice(start, stop), slice(start - past, stop - past)
        *state, received = operators.chunked_intra_attention(
            q[new], k[rows], v[rows], chunk_size=policy.chunk_size, scale=scale, score_heads=heads
        )
        o[new], colsum = operators.memory_fused_attention(q[new], k, v, memory, *state, scale=scale)
        if isinstance(policy, ColumnSum):
            score[rows] = received
            for s in range(heads):
                score[memory[s], s] += colsum[s]
        else:
            k_mem, _ = operators.memory_gather(k, v, memory)
            assert isinstance(policy, Window)
            window = min(policy.window, stop - start)
            votes, score[rows] = operators.candidate_score(q[new][-window:], k[rows], k_mem, scale=scale)
            for s in range(heads):
                score[memory[s], s] = votes[s]
        if stop < length:
            memory = select(score, memory, start, stop, sizes)
    if policy.dense_tail:
        tail = q[-policy.dense_tail :]
        o[-policy.dense_tail :] = operators.cached_attention(tail, k, v, length, scale=scale)
    return o


def select(score: Array, memory: Array, start: int, stop: int, sizes: dict[str, int]) -> Array:
    """The next memory set. Draws of the test whose choice rounding could decide are given up."""
    assume(operators.selection_margin(score, memory, start, stop, **sizes).min() > 1e-4)
    return operators.memory_select(score, memory, start, stop, **sizes)


def test_decoding_attends_to_everything(generator: Generator, checkpoint: Path) -> None:
    """After a sparse prefill too: nothing was evicted from the cache."""
    policy = Query(chunk_size=16, batch_size=64, local=4, heavy=4, dense_tail=0)
    ids = random_ids(90, 6)
    generator.reset()
    generator.prefill(ids[:80], policy)
    model = bundles.reference_model(checkpoint)
    for position in range(80, 90):
        keys, values = cached_rows(generator, position)
        got = generator.decode(int(ids[position]))
        x = model.weights["model.embed_tokens.weight"][ids[position : position + 1]]
        for layer in range(model.layers):
            q, k, v = llama.project_qkv(model, layer, x, position)
            k, v = np.concatenate([keys[layer], k]), np.concatenate([values[layer], v])
            o = operators.cached_attention(q, k, v, position + 1, scale=model.scale)
            x = llama.finish_layer(model, layer, x, o)
        expected = llama.logits_of(model, llama.final_norm(model, x))[0]
        assert relative_error(got, expected) < 1e-4
