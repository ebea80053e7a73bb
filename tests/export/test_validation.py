"""What a validation measures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
from tests.reference import gguf_files
from torch.nn import functional

from h2o_export.checkpoints import open_checkpoint
from h2o_export.validation.divergence import mean_divergence
from h2o_export.validation.tokens import TEXTS, check_tokens
from h2o_runtime.bundles.manifest import TokenCheck
from h2o_runtime.text import Tokenizer


@pytest.mark.parametrize("size", [0.1, 30.0, 3e4])
def test_the_divergence_is_torchs(size: float) -> None:
    draw = np.random.default_rng(0)
    truth = (size * draw.normal(size=(5, 300))).astype(np.float32)
    found = truth + 0.1 * size * draw.normal(size=truth.shape).astype(np.float32)
    p, q = (torch.from_numpy(one).double().log_softmax(dim=1) for one in (truth, found))
    expected = functional.kl_div(q, p, reduction="batchmean", log_target=True)
    assert mean_divergence(truth, found) == pytest.approx(float(expected), rel=1e-9)
    assert mean_divergence(truth, truth + 5) == pytest.approx(0, abs=1e-6)


def test_the_divergence_of_no_numbers_is_none() -> None:
    truth = np.zeros((2, 4), np.float32)
    for wrong in (np.nan, np.inf, -np.inf):
        assert not np.isfinite(mean_divergence(truth, np.full_like(truth, wrong)))


def test_token_ids_are_compared_with_the_published_tokenizer(small_checkpoint: Path) -> None:
    checkpoint, ours = open_checkpoint(str(small_checkpoint)), Tokenizer.load(small_checkpoint)
    same = check_tokens(ours, checkpoint)
    assert same.reference == "tokenizer.json"
    assert (same.texts, same.wrong) == (len(TEXTS), 0)
    other = tokenizers.Tokenizer.from_file(str(small_checkpoint / "tokenizer.json"))
    other.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(use_regex=False)  # type: ignore[assignment]
    assert check_tokens(Tokenizer(other, special_tokens={}), checkpoint).wrong > 1


def test_token_ids_of_a_gguf_file_are_compared_with_nothing(small_checkpoint: Path, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(gguf_files.write(small_checkpoint, tmp_path / "m.gguf")))
    checkpoint.write_tokenizer(tmp_path)
    assert check_tokens(Tokenizer.load(tmp_path), checkpoint) == TokenCheck(texts=1, wrong=0)
