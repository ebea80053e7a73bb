"""Embeddings against the hidden states of transformers, whatever the weights, the pieces and the backend's form."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests import bundles
from tests.conftest import EXAMPLE
from transformers import AutoModelForCausalLM

from h2o_runtime import Generator
from h2o_runtime.errors import Cancelled, ConfigError
from h2o_runtime.execution.reading import Watch
from h2o_runtime.names import Pooling
from h2o_runtime.policies.prefill import Full

FULL = Full()


def expected(checkpoint: Path, ids: NDArray[np.int64], pooling: Pooling) -> NDArray[np.float64]:
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    with torch.no_grad():
        states = model(torch.from_numpy(ids)[None], output_hidden_states=True).hidden_states[-1][0]
    rows: NDArray[np.float64] = states.double().numpy()
    pooled: NDArray[np.float64] = rows.mean(axis=0) if pooling is Pooling.MEAN else rows[-1]
    return pooled / np.linalg.norm(pooled)


def embedding(
    generator: Generator, ids: NDArray[np.int64], piece: int | None = None
) -> list[NDArray[np.float32]]:
    """Of both poolings."""
    found = []
    for pooling in Pooling:
        reading, pauses = generator.embed(ids, pooling, FULL, prompt_piece=piece), 0
        try:
            while True:
                next(reading)
                pauses += 1
        except StopIteration as end:
            found.append(end.value)
        assert bool(pauses) == (piece is not None)
    return found


@pytest.mark.parametrize("piece", [None, 128])
def test_it_is_the_models_last_hidden_state(
    tiny_generator: Generator, heldout_ids: NDArray[np.int64], piece: int | None
) -> None:
    ids = heldout_ids[:700]
    for pooling, vector in zip(Pooling, embedding(tiny_generator, ids, piece), strict=True):
        wanted = expected(EXAMPLE, ids, pooling)
        assert vector.dtype == np.float32
        assert np.abs(vector - wanted).max() <= 2e-5 * np.abs(wanted).max()
        assert np.linalg.norm(vector.astype(np.float64)) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(("weights", "dense_form"), [("int8", "native"), ("int4", "exact")])
def test_rounded_weights_have_hidden_states(
    tmp_path: Path, weights: str, dense_form: str, heldout_ids: NDArray[np.int64]
) -> None:
    """A vector of almost the same direction."""
    bundle = bundles.export(EXAMPLE, tmp_path / "bundle", weights=weights)
    ids = heldout_ids[:200]
    with Generator.load(bundle, context=256, dense_form=dense_form) as generator:
        for pooling, vector in zip(Pooling, embedding(generator, ids), strict=True):
            assert vector @ expected(EXAMPLE, ids, pooling) > 0.95


def test_a_text_leaves_nothing_behind(tiny_generator: Generator, heldout_ids: NDArray[np.int64]) -> None:
    ids = heldout_ids[:300]
    first, last = embedding(tiny_generator, ids)
    assert tiny_generator.length == 0
    tiny_generator.prefill(ids[:200], FULL)
    again, _ = embedding(tiny_generator, ids)
    np.testing.assert_array_equal(first, again)
    assert abs(first @ last) < 0.999


def test_a_text_that_is_stopped(tiny_generator: Generator, heldout_ids: NDArray[np.int64]) -> None:
    run = tiny_generator.embed(heldout_ids[:300], watch=Watch(cancelled=lambda: True))
    with pytest.raises(Cancelled):
        list(run)
    assert tiny_generator.length == 0


def test_a_backend_without_hidden_states() -> None:
    from h2o_runtime.backends.tensorrt import TensorRTBackend

    with pytest.raises(ConfigError, match="embeddings need hidden states"):
        TensorRTBackend.load_hidden(object())  # type: ignore[arg-type]
