"""The references of a policy that compute a layer's whole prompt at once."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests import bundles, family_models
from tests.export.test_comparison import ANGLES, EXACT
from tests.model_specs import grouped
from tests.prefill import altered
from tests.reference import llama

from h2o_export.checkpoints import open_checkpoint
from h2o_export.comparison.compared import ComparedBundle
from h2o_export.comparison.pipeline import PipelineComparison
from h2o_export.policies.h2o.scores.colsum import ColumnSumPass
from h2o_export.policies.h2o.scores.window import VotePass
from h2o_export.policies.h2o.single_pass import SinglePass
from h2o_export.reference.streamed_model import StreamedModel
from h2o_runtime import Generator
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.policies.prefill import ColumnSum
from h2o_runtime.policies.prefill.h2o import H2O

pytestmark = pytest.mark.timeout(600)
LLAMA3 = "llama-g2-d64-llama3"  # head size 64: the scale 1/8 is the same number in float32 and float64


CHUNKS = ColumnSum(chunk_size=48, batch_size=96, local=8, heavy=12, dense_tail=0)
WINDOW = altered(CHUNKS, score="window", window=6)
CASES = {
    "colsum": CHUNKS,
    "window": WINDOW,
    "colsum, query heads": altered(CHUNKS, heads="query"),
    "window, query heads": altered(WINDOW, heads="query"),
    "dense tail": altered(CHUNKS, dense_tail=60),
    "a tail over everything": altered(CHUNKS, dense_tail=1000),
    "all at once": altered(WINDOW, heads="query", dense_tail=29),
    "one chunk": altered(CHUNKS, chunk_size=512, batch_size=512),
}


def _reference(checkpoint: Path, ids: NDArray[np.int64], policy: H2O[Any]) -> llama.H2ORun:
    return llama.h2o_run(
        bundles.reference_model(checkpoint),
        ids,
        chunk_size=policy.chunk_size,
        local=policy.local,
        heavy=policy.heavy,
        score=policy.score,
        window=getattr(policy, "window", None),
        heads=policy.heads,
        dense_tail=policy.dense_tail,
    )


def _sets(run: llama.H2ORun) -> NDArray[np.int32]:
    return np.array(
        [[step.memory for step in steps] for steps in run.selections]
    )  # [layers, boundaries, Hs, M]


def single_pass(policy: Any, model: Any, adopt: Any = None) -> SinglePass[Any]:
    rules = {"colsum": ColumnSumPass, "window": VotePass}
    return rules[policy.score](policy, model, adopt)


def layers_of(bundle: Path) -> ModelSpec:
    return Bundle.open(bundle).manifest.model


def _single_pass(checkpoint: Path, ids: NDArray[np.int64], rule: SinglePass[Any]) -> NDArray[np.float64]:
    """Logits of every token in float64."""
    model = StreamedModel(open_checkpoint(str(checkpoint)), torch.float64, rule)
    *_, hidden = model.hidden_states(ids.tolist())
    logits: NDArray[np.float64] = model.logits(hidden).numpy()
    return logits


@pytest.mark.parametrize(
    ("name", "case"), [*((LLAMA3, case) for case in CASES), ("qwen3-g2-d128", "all at once")]
)
def test_the_single_pass_equals_the_reference_that_goes_chunk_by_chunk(
    name: str, case: str, shared_folder: Path
) -> None:
    checkpoint, bundle = bundles.named(shared_folder, name)
    policy, ids = CASES[case], bundles.random_ids(211, seed=3)
    run = _reference(checkpoint, ids, policy)
    rule = single_pass(policy, layers_of(bundle), _sets(run))
    logits = _single_pass(checkpoint, ids, rule)
    assert bundles.relative_error(logits, run.logits) < 10 * ANGLES
    assert (rule.wrong, rule.swapped) == (0, 0)
    alone = _single_pass(checkpoint, ids, single_pass(policy, layers_of(bundle)))
    assert np.array_equal(alone, logits)


def test_the_policy_of_the_single_pass_is_sparse(shared_folder: Path) -> None:
    checkpoint, bundle = bundles.named(shared_folder, LLAMA3)
    ids = bundles.random_ids(211, seed=3)
    full = _single_pass(checkpoint, ids, single_pass(CASES["one chunk"], layers_of(bundle)))
    plain = StreamedModel(open_checkpoint(str(checkpoint)), torch.float64)
    *_, hidden = plain.hidden_states(ids.tolist())
    assert bundles.relative_error(full, plain.logits(hidden).numpy()) < EXACT
    sparse = _single_pass(checkpoint, ids, single_pass(CHUNKS, layers_of(bundle)))
    assert np.allclose(sparse[:48], full[:48], rtol=0, atol=1e-9)  # the first chunk sees all there is
    assert bundles.relative_error(sparse[48:], full[48:]) > 1e-2


WRONG = {
    # What replaces one entry of the sets after the second chunk, which ends at 96 with local window 88 … 95.
    "a clearly lower score": lambda chosen, run: _worst(run),
    "a token that was forgotten": lambda chosen, run: _forgotten(run),
    "a token of the future": lambda chosen, run: 100,
    "the same token twice": lambda chosen, run: chosen[1],
}


def _worst(run: llama.H2ORun) -> int:
    step = run.selections[0][1]
    candidates = [j for j in range(step.start, step.stop - 8) if j not in step.memory[0]]
    return min(candidates, key=lambda j: float(step.score[j, 0]))


def _forgotten(run: llama.H2ORun) -> int:
    step = run.selections[0][1]
    return next(j for j in range(3, step.start) if j not in step.before[0])


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_memory_set_is_counted_as_wrong(what: str, shared_folder: Path) -> None:
    checkpoint, bundle = bundles.named(shared_folder, LLAMA3)
    ids = bundles.random_ids(150, seed=4)
    run = _reference(checkpoint, ids, CHUNKS)
    sets = _sets(run)
    chosen = sets[0, 1, 0]
    entry = np.flatnonzero(chosen < 88)[0]  # a heavy hitter
    chosen[entry] = WRONG[what](chosen, run)
    rule = single_pass(CHUNKS, layers_of(bundle), sets)
    _single_pass(checkpoint, ids, rule)
    assert rule.wrong >= 1
    assert rule.swapped == 0


def test_a_lost_local_token_is_counted_as_wrong(shared_folder: Path) -> None:
    checkpoint, bundle = bundles.named(shared_folder, LLAMA3)
    ids, lost = bundles.random_ids(150, seed=4), 95
    run = _reference(checkpoint, ids, CHUNKS)
    sets = _sets(run)
    chosen = sets[0, 1, 0]
    assert lost in chosen
    chosen[chosen == lost] = next(j for j in range(48, 88) if j not in chosen)
    rule = single_pass(CHUNKS, layers_of(bundle), sets)
    _single_pass(checkpoint, ids, rule)
    assert rule.wrong >= 1
    assert rule.swapped == 0


def test_equal_scores_that_went_the_other_way_are_near_ties() -> None:
    # All keys are alike, so under `window` every candidate has the same votes but for the last rows.
    policy = altered(CHUNKS, score="window", chunk_size=16, batch_size=16, local=4, heavy=3, window=2)
    q, k = torch.zeros(1, 2, 20, 4), torch.zeros(1, 1, 20, 4)
    module, model = SimpleNamespace(layer_idx=0), grouped(2, 1)
    mine, theirs = [0, 1, 2, 12, 13, 14, 15], [0, 5, 9, 12, 13, 14, 15]
    for chosen, swapped in ((mine, 0), (theirs, 4)):
        rule = single_pass(policy, model, np.array(chosen, np.int32).reshape(1, 1, 1, 7))
        rule(module, q, k, torch.randn(1, 1, 20, 4), None, 0.5)
        assert (rule.swapped, rule.wrong) == (swapped, 0)


# The pipeline


def test_the_pipeline_takes_layers_that_are_several_blocks_of_a_checkpoint(tmp_path: Path) -> None:
    checkpoint = family_models.save(tmp_path / "checkpoint", "nemotron_h")
    bundle = bundles.export(checkpoint, tmp_path / "bundle")
    ids = bundles.random_ids(150, vocab=family_models.VOCAB).tolist()
    pipeline = PipelineComparison(ComparedBundle(Bundle.open(bundle)), ids)
    (row,) = pipeline.against_checkpoint(open_checkpoint(str(checkpoint)), [CHUNKS], lambda stage: None)
    assert row.passed, row


def test_the_pipeline_tells_a_wrong_memory_set(shared_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint, bundle = bundles.named(shared_folder, LLAMA3)
    pipeline = PipelineComparison(ComparedBundle(Bundle.open(bundle)), bundles.random_ids(150).tolist())
    truth = open_checkpoint(str(checkpoint))
    (row,) = pipeline.against_checkpoint(truth, [CHUNKS], lambda stage: None)
    assert row.passed
    assert "0 entries wrong" in row.note

    real = Generator.boundary_memory

    def altered(generator: Generator) -> NDArray[np.int32]:
        sets = real(generator)
        sets[1, 1, 0, 0] = 60 if 60 not in sets[1, 1, 0] else 61
        return np.sort(sets)

    monkeypatch.setattr(Generator, "boundary_memory", altered)
    (row,) = pipeline.against_checkpoint(truth, [CHUNKS], lambda stage: None)
    assert not row.passed
    assert "entries wrong" in row.reason
    assert "0 entries wrong" not in row.reason


# Rows
