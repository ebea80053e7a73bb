"""bench/gguf_loss measures what transformers computes of the same weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from bench.gguf_loss import measured
from gguf import GGMLQuantizationType as Kind

from tests import bundles, family_models
from tests.reference import gguf_files


@pytest.mark.slow
def test_losses_of_a_file_and_of_its_bundle(tmp_path: Path) -> None:
    folder = family_models.save(tmp_path / "checkpoint", "smollm3")
    file = gguf_files.write(folder, tmp_path / "model.gguf", Kind.Q8_0)
    bundle = bundles.export(file, tmp_path / "bundle", weights="stored")
    ids = bundles.random_ids(40, vocab=family_models.VOCAB).tolist()
    row = next(measured(file, bundle, {"text": ids}, threads=1))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.inference_mode():
        truth = float(model(torch.tensor([ids]), labels=torch.tensor([ids])).loss)
    assert (row.reader, row.text, row.tokens) == ("stored", "text", 40)
    assert row.loss == pytest.approx(truth, abs=0.03)  # 8 bits, of weights and activations
    assert abs(row.increase) < 0.03
