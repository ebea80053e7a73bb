"""Sparse prefill of real text against the float64 reference, which goes chunk by chunk with one softmax a query."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest
from tests.bundles import IntArray, reference_model
from tests.conftest import EXAMPLE
from tests.prefill import prefill_of
from tests.reference import llama, operators
from tests.reference.llama import Float64, H2ORun, Int32, Model, Selection

from h2o_runtime import Generator

LENGTHS = {256: (200, 512, 900), 512: (512, 700)}  # by the size of a chunk
TAIL = 128
TOLERANCE = 1e-4


@dataclass
class Recorded:
    """A reference run of the longest prompt without dense tail, and every layer's keys and values [N, Hkv, d].

    Attention is causal, so its first rows and selections are those of every shorter prompt.
    """

    run: H2ORun
    keys: list[Float64]
    values: list[Float64]


@pytest.fixture(scope="module")
def model() -> Model:
    return reference_model(EXAMPLE)


def record(model: Model, ids: IntArray, **flags: Any) -> Recorded:
    shape = (len(ids), model.kv_heads, model.head_size)
    keys, values = ([np.zeros(shape) for _ in range(model.layers)] for _ in range(2))
    project = llama.project_qkv

    def project_and_record(
        model: Model, layer: int, x: Float64, start: int
    ) -> tuple[Float64, Float64, Float64]:
        q, k, v = project(model, layer, x, start)
        keys[layer][start : start + len(x)], values[layer][start : start + len(x)] = k, v
        return q, k, v

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llama, "project_qkv", project_and_record)
        run = llama.h2o_run(model, ids, dense_tail=0, **flags)
    return Recorded(run, keys, values)


def dense_tail_hidden(model: Model, recorded: Recorded, length: int, tail: int) -> Float64:
    """Hidden states of a prompt of `length` tokens whose last `tail` attend to everything, [tail, hidden]."""
    start = length - tail
    x = model.weights["model.embed_tokens.weight"][recorded.run.ids[start:length]]
    causal = np.arange(length)[None, :] <= np.arange(start, length)[:, None]
    for layer in range(model.layers):
        q, k, v = llama.project_qkv(model, layer, x, start)
        keys = np.concatenate([recorded.keys[layer][:start], k])
        values = np.concatenate([recorded.values[layer][:start], v])
        attention = np.empty_like(q)
        for h in range(model.query_heads):
            kv = h // (model.query_heads // model.kv_heads)
            attention[:, h], _ = llama.masked_attention(
                q[:, h], keys[:, kv], values[:, kv], causal, model.scale
            )
        x = llama.finish_layer(model, layer, x, attention)
    return llama.final_norm(model, x)


def expected_logprobs(model: Model, recorded: Recorded, length: int, tail: int, chunk_size: int) -> Float64:
    ids, logprobs = recorded.run.ids[:length], recorded.run.logprobs[: length - 1]
    if not tail or length <= chunk_size:
        return logprobs
    # The shortcut needs all memories to be chosen before the tail begins: else its rows could decide one.
    assert (length - 1) // chunk_size * chunk_size <= length - tail
    hidden = dense_tail_hidden(model, recorded, length, tail)
    return np.concatenate([logprobs[: length - tail], llama.logprobs_of(model, hidden, ids[-tail:])])


def wrong_selections(run: H2ORun, actual: Int32, local: int) -> Iterator[str]:
    """A different set changes all later results. So it is judged only if nothing before it differs: the same
    head in the same layer, and any head in lower layers.
    """
    tainted: set[int] = set()  # chunks from which on a lower layer differs
    for layer, steps in enumerate(run.selections):
        first = min(tainted, default=len(steps))
        for s in range(run.score_heads):
            for chunk in range(min(first, actual.shape[1])):
                if np.array_equal(actual[layer, chunk][s], steps[chunk].memory[s]):
                    continue
                if not near_tie(steps[chunk], actual[layer, chunk], s, local):
                    yield f"layer {layer}, head {s}, chunk {chunk}"
                tainted.add(chunk + 1)
                break


def near_tie(step: Selection, actual: Int32, s: int, local: int) -> bool:
    head = slice(s, s + 1)
    return operators.same_but_for_near_ties(
        step.memory[head], actual[head], step.score[:, head], stop=step.stop, local=local
    )


def test_the_reference_tail_may_be_computed_alone(model: Model, heldout_ids: IntArray) -> None:
    flags: dict[str, Any] = {"chunk_size": 256, "local": 64, "heavy": 64}
    recorded = record(model, heldout_ids[:800], **flags)
    whole = llama.h2o_run(model, heldout_ids[:700], dense_tail=TAIL, **flags)
    shortcut = expected_logprobs(model, recorded, 700, TAIL, 256)
    np.testing.assert_allclose(shortcut, whole.logprobs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("chunk_size", "score", "heads"),
    [
        (256, "colsum", "kv"),
        (512, "window", "query"),
        pytest.param(256, "window", "kv", marks=pytest.mark.nightly),
        pytest.param(512, "colsum", "query", marks=pytest.mark.nightly),
    ],
)
def test_logprobs_equal_the_chunk_by_chunk_reference(
    tiny_generator: Generator,
    heldout_ids: IntArray,
    model: Model,
    chunk_size: int,
    score: Literal["colsum", "window"],
    heads: Literal["kv", "query"],
) -> None:
    size = chunk_size // 4
    flags: dict[str, Any] = {
        "chunk_size": chunk_size,
        "local": size,
        "heavy": size,
        "score": score,
        "heads": heads,
    }
    if score == "window":
        flags["window"] = min(64, size)
    recorded = record(model, heldout_ids[: max(LENGTHS[chunk_size])], **flags)
    errors: dict[tuple[int, int], float] = {}
    for length in LENGTHS[chunk_size]:
        for tail in (0, TAIL):
            expected = expected_logprobs(model, recorded, length, tail, chunk_size)
            actual = tiny_generator.logprobs(heldout_ids[:length], prefill_of(dense_tail=tail, **flags))
            assert actual.shape == (length - 1,)
            errors[length, tail] = float(np.abs(actual - expected).max())
            chunks = (length - 1) // chunk_size
            sets = tiny_generator.boundary_memory()  # [layers, chunks, Hs, M]
            assert sets.shape[1] == chunks
            wrong = list(wrong_selections(recorded.run, sets, size))
            assert not wrong, f"N = {length}, dense tail {tail}: memory sets differ at {wrong}"
            last = tiny_generator.report().last
            assert len(last) == (model.layers if chunks else 0)
            for layer, memory in enumerate(last):
                np.testing.assert_array_equal(memory, sets[layer, -1])
    assert max(errors.values()) <= TOLERANCE, f"(N, dense tail) → error: {errors}"
