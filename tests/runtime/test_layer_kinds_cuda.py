"""Windows, capped scores, sinks and states on a GPU, whose place the emulation takes: equal to the CPU."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from tests.bundles import export, random_ids
from tests.family_models import MODELS, VOCAB, WINDOWS, save

from h2o_runtime import Generator
from h2o_runtime.policies.prefill import Full, Query

pytestmark = pytest.mark.usefixtures("dense_graphs_wait", "small_blocks")

IDS = random_ids(100, 5, VOCAB)
H2O = Query(chunk_size=24, batch_size=48, local=6, heavy=10, tile=10, candidates=20)


@pytest.mark.parametrize("family", ["gpt_oss", "qwen3_5"])
def test_a_conversation_equals_the_cpus(family: str, tmp_path: Path, emulated_cuda: ModuleType) -> None:
    bundle = export(save(tmp_path / "checkpoint", family, {**MODELS, **WINDOWS}), tmp_path / "bundle")
    found = []
    for device in ("cuda", "cpu"):
        with Generator.load(bundle, context=128, device=device, threads=1) as generator:
            logits = []
            for policy in (H2O, Full(batch_size=48)):
                logits.append(generator.prefill(IDS[:80], policy, reuse=False).copy())
                logits += [generator.decode(token).copy() for token in IDS[80:84]]
                logits.append(generator.prefill(IDS, policy).copy())
            found.append(logits)
    for ours, theirs in zip(*found, strict=True):
        assert np.abs(ours - theirs).max() <= 2e-5 * np.abs(theirs).max()
