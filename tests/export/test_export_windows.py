"""Families with sliding windows: bundles against transformers, at prompts beyond the window."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.bundles import export, random_ids, relative_error
from tests.family_models import VOCAB, WINDOWS, save
from tests.prefill import prefill_of
from transformers import AutoModelForCausalLM

from h2o_export.checkpoints import open_checkpoint
from h2o_export.comparison.compared import ComparedBundle
from h2o_export.comparison.graphs import GraphComparison
from h2o_export.comparison.pipeline import PipelineComparison
from h2o_export.validation.validate import validate
from h2o_runtime import Generator
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.policies.prefill import Full

pytestmark = pytest.mark.slow

FULL = Full(batch_size=64)
TOKENS = 300


@pytest.fixture(autouse=True, scope="module")
def one_torch_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", WINDOWS)
def test_a_family_computes_what_transformers_computes(tmp_path: Path, name: str) -> None:
    folder = save(tmp_path / "checkpoint", name, WINDOWS)
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    bundle = export(folder, tmp_path / "bundle")
    ids = random_ids(TOKENS, vocab=VOCAB)
    with torch.inference_mode():
        expected = theirs(torch.from_numpy(ids)[None]).logits[0].numpy()
    with Generator.load(bundle, context=512) as generator:
        assert generator.model.windows == (WINDOWS[name][1]["sliding_window"],)
        for length in (1, 63, 200, TOKENS):  # each reads on behind the one before
            logits = generator.prefill(ids[:length], FULL)
            assert relative_error(logits, expected[length - 1]) < 1e-4
            assert generator.reused < length
        fresh = generator.prefill(ids, FULL, reuse=False).copy()
        assert relative_error(fresh, expected[-1]) < 1e-4
        generator.prefill(ids[:250], FULL, reuse=False)
        for token in ids[250:]:
            logits = generator.decode(int(token))
        assert relative_error(logits, fresh) < 1e-5
        other = np.concatenate([ids[:190], ids[:20]])  # back to an earlier place, and on otherwise
        again = generator.prefill(other, FULL).copy()
        assert relative_error(again, generator.prefill(other, FULL, reuse=False)) < 1e-5
    assert validate(bundle, open_checkpoint(str(folder)), lambda stage: None).passed


@pytest.mark.parametrize(
    ("name", "score"), [("exaone4", "colsum"), ("gemma2", "query"), ("gemma4", "query"), ("gpt_oss", "query")]
)
def test_comparisons_know_windows(tmp_path: Path, name: str, score: Any) -> None:
    """Every graph, and the bundle under a sparse policy, whose reference has layers with a window, and caps
    and sinks in all."""
    folder = save(tmp_path / "checkpoint", name, WINDOWS)
    policy = prefill_of(chunk_size=32, batch_size=64, local=8, heavy=8, dense_tail=4, score=score)
    bundle = export(folder, tmp_path / "bundle", prefill=policy)
    compared = ComparedBundle(Bundle.open(bundle))
    ids = random_ids(150, vocab=VOCAB).tolist()
    graphs = GraphComparison(compared, None)
    rows = [*graphs.dense(ids, str), *graphs.attention(["native", "functions"], str)]
    assert {row.graph for row in rows} >= {"decode", "window_64", "dense_00"}
    pipeline = PipelineComparison(compared, ids)
    rows += pipeline.against_checkpoint(open_checkpoint(str(folder)), [FULL, policy], str)
    assert len(rows) > 8
    assert all(row.passed for row in rows), [row for row in rows if not row.passed]
