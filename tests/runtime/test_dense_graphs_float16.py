"""float16 bundles with products of our own: float32 activations, and what that changes around them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests import bundles, family_models
from tests.bundles import relative_error
from tests.reference import llama

from h2o_runtime import Generator
from h2o_runtime.backends.onnxruntime import products_on_cpu
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.caches import Contiguous
from h2o_runtime.dense_graphs import native
from h2o_runtime.dense_graphs.native import is_fast, is_fast_with_float16
from h2o_runtime.execution.footprint import weight_bytes
from h2o_runtime.policies.prefill import Full

SHAPE = "llama-g2-d64-llama3"
pytestmark = pytest.mark.slow
FULL = Full()
HALF = 2.0**-11  # relative rounding of weights

fast_here = pytest.mark.skipif(not is_fast(), reason="this CPU has no instructions for our products")


@pytest.fixture(scope="module", params=["float", "int8"])
def folder(request: pytest.FixtureRequest, shared_folder: Path) -> Path:
    variant = {"float": "-float16", "int8": "-half-int8"}[request.param]
    return bundles.named(shared_folder, SHAPE, variant, weights=request.param, dtype="float16")[1]


def logits(folder: Path, **options: Any) -> NDArray[np.float32]:
    """After a prompt and two steps."""
    with Generator.load(folder, context=64, threads=2, device="cpu", **options) as generator:
        ids = bundles.random_ids(40, vocab=family_models.VOCAB)  # the smallest
        found = [generator.prefill(ids, FULL).copy()]
        return np.array([*found, *(generator.decode(token).copy() for token in (3, 4))])


def test_activations_of_our_own_products_are_float32(folder: Path) -> None:
    """And a step is one graph."""
    exact = logits(folder, dense_form="exact")
    with Generator.load(folder, context=64, threads=2, device="cpu", dense_form="native") as generator:
        assert generator.model.dtype == generator.spec.stored_dtype == "float32"
        generator.prefill([1, 2, 3])
        assert generator.loaded.forward.graph(generator.session) is not None
    assert 1e-6 < relative_error(logits(folder, dense_form="native"), exact) < 0.03


def test_float32_products_are_those_of_float64(shared_folder: Path) -> None:
    checkpoint, folder = bundles.named(shared_folder, SHAPE, "-float16", dtype="float16")
    ids = bundles.random_ids(40)
    with Generator.load(
        folder, context=64, device="cpu", dense_form="native", dense_precision="float32"
    ) as generator:
        found = generator.prefill(ids, FULL).copy()
    expected = llama.full_logits(bundles.reference_model(checkpoint), ids)[-1]
    assert relative_error(found, expected) < 8 * HALF


@fast_here
def test_weights_become_bfloat16_by_default(shared_folder: Path) -> None:
    folder = bundles.named(shared_folder, SHAPE, "-float16", dtype="float16")[1]
    manifest = Bundle.open(folder).manifest
    expected = ("native", "bfloat16") if is_fast_with_float16() else ("exact", "float32")
    with Generator.load(folder, context=64, device="cpu") as generator:
        backend: Any = generator.loaded.backend
        assert (backend.dense_form, backend.dense_precision) == expected
    assert products_on_cpu(manifest, 1, "exact", "auto") == ("exact", "float32")
    assert products_on_cpu(manifest, 1, "auto", "float32") == ("exact", "float32")
    error = relative_error(logits(folder), logits(folder, dense_form="exact"))
    assert 1e-4 < error < 0.03


def test_a_processor_with_float16_products_is_left_to_onnx_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "is_fast", lambda: True)
    for machine, rounds, fast in (
        ("x86_64", False, True),
        ("aarch64", False, False),
        ("aarch64", True, True),
    ):
        kernels = type("", (), {"products_multiply_bfloat16": staticmethod(lambda: rounds)})  # noqa: B023
        monkeypatch.setattr(native, "cpu_kernels", lambda: kernels)  # noqa: B023
        monkeypatch.setattr(native.platform, "machine", lambda: machine)  # noqa: B023
        assert is_fast_with_float16() == fast


@fast_here
def test_rows_may_be_stored_as_float16(folder: Path) -> None:
    whole = logits(folder, dense_form="native")
    rounded = logits(folder, dense_form="native", cache=Contiguous(rows="float16"))
    assert 0 < relative_error(rounded, whole) < 0.03


@pytest.mark.parametrize("name", ["gemma4-experts", "qwen3_5"])
def test_graphs_of_every_kind_are_widened(name: str, tmp_path: Path) -> None:
    checkpoint = family_models.save(tmp_path / "checkpoint", name)
    folder = bundles.export(checkpoint, tmp_path / "bundle", dtype="float16")
    exact, found = (logits(folder, dense_form=form) for form in ("exact", "native"))
    assert relative_error(found, exact) < 0.05


def test_memory_of_packed_floats(shared_folder: Path) -> None:
    """As large as in the file in bfloat16, twice in float32; a tied table besides."""
    model = Bundle.open(bundles.named(shared_folder, SHAPE, "-float16", dtype="float16")[1]).manifest.model
    assert model.weights is not None
    assert model.tied
    assert (
        weight_bytes(model, "bfloat16")
        == weight_bytes(model)
        == model.weight_bytes + model.weights.table_bytes
    )
    packed = model.weights.projection_bytes + model.weights.table_bytes
    assert weight_bytes(model, "float32") == weight_bytes(model) + packed
