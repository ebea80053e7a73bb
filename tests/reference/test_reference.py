"""Pins the Llama reference to transformers, and the sparse prefill to what must hold for any shape."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.reference import checkpoints, llama, operators
from tests.reference.llama import Float64, Model

SPARSE: dict[str, Any] = {"chunk_size": 32, "local": 8, "heavy": 8}
RULES: dict[str, dict[str, Any]] = {
    "colsum": {},
    "window": {"score": "window", "window": 5},
    "query heads": {"heads": "query"},
    "window, query heads": {"score": "window", "window": 8, "heads": "query"},
}


def random_ids(length: int, seed: int = 0, vocab: int = 4096) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.random.default_rng(seed).integers(2, vocab, length)


def relative_error(actual: Float64, expected: Float64) -> float:
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("checkpoints")
    made = {name: checkpoints.make_named(root / name, name) for name in checkpoints.SHAPES}
    made["llama-llama3-sharded"] = checkpoints.make_checkpoint(
        root / "a", rope="llama3", sharded=True, seed=1
    )
    made["qwen3-llama3"] = checkpoints.make_checkpoint(root / "b", "qwen3", rope="llama3", vocab=500)
    made["llama-float16"] = checkpoints.make_checkpoint(root / "c", dtype="float16", layers=3)
    made["example"] = checkpoints.EXAMPLE
    return made


@pytest.fixture(scope="module")
def model(folders: dict[str, Path]) -> Model:
    return llama.load_model(folders["llama-float16"])


# --- Against transformers ---------------------------------------------------------------------------------


def compute_in_float64(model: PreTrainedModel) -> PreTrainedModel:
    """transformers computes norms and RoPE in float32 whatever the model's dtype: lift both."""

    def norm(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    def rope(self: Any, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        half = position_ids[..., None].double() * self.inv_freq.double()
        angle = torch.cat((half, half), dim=-1)
        return angle.cos(), angle.sin()

    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = norm.__get__(module)
    model.model.rotary_emb.forward = rope.__get__(model.model.rotary_emb)
    return model


NIGHTLY = ("llama-g1-d32", "llama-g8-d64", "mistral-g4-d128", "llama-g2-d48", "llama-llama3-sharded")
NAMES = [*checkpoints.SHAPES, "llama-llama3-sharded", "qwen3-llama3", "llama-float16", "example"]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly if name in NIGHTLY else ()) for name in NAMES]
)
def test_full_logits_equal_transformers(folders: dict[str, Path], name: str) -> None:
    ours = llama.load_model(folders[name])
    theirs = AutoModelForCausalLM.from_pretrained(folders[name], dtype=torch.float64)
    vocab = ours.weights["lm_head.weight"].shape[0]
    ids = random_ids(150, vocab=vocab)

    # transformers rounds its frequencies to float32; beyond that, nothing may differ.
    frequencies = theirs.model.rotary_emb.inv_freq.double().numpy()
    np.testing.assert_allclose(ours.inv_freq, frequencies, rtol=1e-6)
    ours = dataclasses.replace(ours, inv_freq=frequencies)
    with torch.no_grad():
        as_it_is = theirs(torch.from_numpy(ids)[None]).logits[0].numpy()
        expected = compute_in_float64(theirs)(torch.from_numpy(ids)[None]).logits[0].numpy()
    actual = llama.full_logits(ours, ids)
    assert relative_error(actual, expected) < 1e-9
    assert relative_error(actual, as_it_is) < 1e-4

    logprobs = torch.log_softmax(torch.from_numpy(expected), -1)[np.arange(149), ids[1:]]
    np.testing.assert_allclose(llama.full_logprobs(ours, ids), logprobs, rtol=1e-8, atol=1e-8)


# --- What holds for every sparse run ----------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_a_memory_that_covers_the_past_is_full_attention(model: Model, rule: str) -> None:
    ids = random_ids(100)
    run = llama.h2o_run(model, ids, chunk_size=32, local=32, heavy=64, dense_tail=0, **RULES[rule])
    assert relative_error(run.logits, llama.full_logits(model, ids)) < 1e-12
    assert all(np.array_equal(row, np.arange(96)) for memory in run.memory_sets for row in memory)
    # One slot fewer, and something is lost: the check above can fail.
    run = llama.h2o_run(model, ids, chunk_size=32, local=32, heavy=31, dense_tail=0, **RULES[rule])
    assert relative_error(run.logits, llama.full_logits(model, ids)) > 1e-4


def test_column_sums_and_votes_add_up(model: Model) -> None:
    ids = random_ids(64)
    # A row of probabilities sums to 1: 32 queries, 2 query heads a score head, then a second pass likewise.
    run = llama.h2o_run(model, ids, **SPARSE)
    np.testing.assert_allclose([s.sum(axis=0) for s in run.scores], 2 * 32 * 3)
    run = llama.h2o_run(model, ids, **SPARSE, score="window", window=5, heads="query")
    for score, steps in zip(run.scores, run.selections, strict=True):
        for s, row in enumerate(steps[0].memory):
            np.testing.assert_allclose(score[row, s].sum() + score[32:, s].sum(), 5)


def test_dense_tail(folders: dict[str, Path]) -> None:
    model = llama.load_model(folders["llama-float16"])
    ids = random_ids(150)
    everything = llama.h2o_run(model, ids, dense_tail=150, **SPARSE)
    assert relative_error(everything.logits, llama.full_logits(model, ids)) < 1e-12

    # With one layer a query's own output is all that can differ; 40 tokens reach back over a chunk border.
    single = dataclasses.replace(model, layers=1)
    full, sparse, mixed = (
        llama.full_logits(single, ids),
        llama.h2o_run(single, ids, dense_tail=0, **SPARSE),
        llama.h2o_run(single, ids, dense_tail=40, **SPARSE),
    )
    assert relative_error(mixed.logits[110:], full[110:]) < 1e-12
    np.testing.assert_allclose(mixed.logits[:110], sparse.logits[:110], rtol=1e-9, atol=1e-9)
    assert relative_error(sparse.logits[110:], full[110:]) > 1e-3
    np.testing.assert_array_equal(mixed.scores[0], sparse.scores[0])
    np.testing.assert_array_equal(mixed.memory_sets[0], sparse.memory_sets[0])


# --- The other schedule, the other formula ----------------------------------------------------------------


def layer_by_layer(
    model: Model,
    ids: np.ndarray[Any, np.dtype[np.int64]],
    *,
    chunk_size: int,
    local: int,
    heavy: int,
    score: str = "colsum",
    window: int = 0,
    heads: str = "kv",
    dense_tail: int = 128,
) -> tuple[Float64, list[operators.Int32]]:
    """The same prefill as the runtime schedules it, out of the operators alone."""
    length, scale = len(ids), model.scale
    count = model.kv_heads if heads == "kv" else model.query_heads
    x = model.weights["model.embed_tokens.weight"][ids]
    sets = []
    for layer in range(model.layers):
        q, k, v = llama.project_qkv(model, layer, x, 0)
        o, m, l, scores = operators.chunked_intra_attention(
            q, k, v, chunk_size=chunk_size, scale=scale, score_heads=count
        )
        memory = np.zeros((count, 0), np.int32)
        for start in range(0, length, chunk_size):
            stop = min(start + chunk_size, length)
            chunk = slice(start, stop)
            if start > 0:
                o[chunk], colsum = operators.memory_fused_attention(
                    q[chunk], k, v, memory, o[chunk], m[chunk], l[chunk], scale=scale
                )
                for s in range(count):
                    scores[memory[s], s] += colsum[s]
            if stop == length:
                break
            if score == "window":
                k_mem, _ = operators.memory_gather(k, v, memory)
                old, scores[chunk] = operators.candidate_score(
                    q[stop - window : stop], k[chunk], k_mem, scale=scale
                )
                for s in range(count):
                    scores[memory[s], s] = old[s]
            memory = operators.memory_select(scores, memory, start, stop, local=local, heavy=heavy)
        if dense_tail and length > chunk_size:
            o[-dense_tail:] = operators.cached_attention(q[-dense_tail:], k, v, length, scale=scale)
        sets.append(memory)
        x = llama.finish_layer(model, layer, x, o)
    return llama.logits_of(model, llama.final_norm(model, x)), sets


@pytest.mark.parametrize("dense_tail", [pytest.param(0, marks=pytest.mark.nightly), 40])
@pytest.mark.parametrize("rule", RULES)
def test_both_schedules_agree(model: Model, rule: str, dense_tail: int) -> None:
    ids = random_ids(150)
    run = llama.h2o_run(model, ids, dense_tail=dense_tail, **SPARSE, **RULES[rule])
    logits, sets = layer_by_layer(model, ids, dense_tail=dense_tail, **SPARSE, **RULES[rule])
    assert run.margins.min() > 1e-9  # else rounding could decide a set
    assert relative_error(logits, run.logits) < 1e-10
    for expected, actual in zip(run.memory_sets, sets, strict=True):
        np.testing.assert_array_equal(actual, expected)
    assert relative_error(logits, llama.full_logits(model, ids)) > 1e-2  # sparse, not full
