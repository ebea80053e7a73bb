"""Forms of integer weights on ONNX Runtime: what each computes, which is chosen, and what it takes in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from tests import bundles
from tests.users import nameless_user

from h2o_runtime import Generator
from h2o_runtime.backends.select import make_backend
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.bundles.manifest import Manifest
from h2o_runtime.dense_graphs import native
from h2o_runtime.dense_graphs.choice import (
    DenseProducts,
    DenseTimes,
    Measured,
    choice_file,
    chosen_products,
    default_products,
    keep,
    machine,
)
from h2o_runtime.dense_graphs.native import can_widen
from h2o_runtime.errors import ConfigError, OutputError
from h2o_runtime.execution.footprint import weight_bytes
from h2o_runtime.names import DenseForm, DensePrecision
from h2o_runtime.policies.prefill import Full

TIED, UNTIED = "llama-g2-d64-llama3", "qwen2-g4-d32"
FULL = Full()


@pytest.fixture(scope="module", params=[(TIED, "int8"), (UNTIED, "int4+offset")])
def bundle(request: pytest.FixtureRequest, shared_folder: Path) -> Path:
    shape, weights = request.param
    return bundles.named(shared_folder, shape, f"-{weights}", weights=weights)[1]


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def logits(bundle: Path, form: DenseForm, tokens: int = 48) -> tuple[Any, Any]:
    """After a prompt, and after one more token."""
    ids = bundles.random_ids(tokens)
    with Generator.load(bundle, context=64, threads=1, dense_form=form) as generator:
        first = generator.prefill(ids, FULL).copy()
        return first, generator.decode(7).copy()


def test_every_form_computes_the_model(bundle: Path) -> None:
    exact = logits(bundle, "exact")
    for form in ("native", "blocks"):
        for found, expected in zip(logits(bundle, form), exact, strict=True):  # type: ignore[arg-type]
            error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
            assert 1e-5 < error < 0.05, form


def test_a_bundle_of_floats_has_no_form_of_integers(shared_folder: Path) -> None:
    folder = bundles.named(shared_folder, TIED)[1]
    with Generator.load(folder, context=64) as generator:
        assert generator.loaded.backend.dense_form == ("native" if native.is_fast() else "exact")  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="`dense_form=blocks` has no effect with float weights"):
        Generator.load(folder, context=64, dense_form="blocks")


def test_a_form_is_for_a_cpu_alone(bundle: Path) -> None:
    gpu = Mock(memory="cuda")
    with pytest.raises(ConfigError, match="`dense_form=blocks` has no effect here"):
        make_backend("onnxruntime", Bundle.open(bundle), gpu, 1, 64, "blocks")
    with pytest.raises(ConfigError, match="`dense_form=native` has no effect here"):
        make_backend("tensorrt", Bundle.open(bundle), gpu, 1, 64, "native")


# Choosing


INTEGERS, WIDENED, BLOCKS = (
    DenseProducts("native"),
    DenseProducts("native", "bfloat16"),
    DenseProducts("blocks"),
)


def measured(loss_of_native: float = 0.0, widened_s: float = 4e-4) -> Measured:
    def times(
        form: DenseForm, row_s: float, many_s: float, loss: float, precision: DensePrecision = "float32"
    ) -> DenseTimes:
        return DenseTimes(form=form, precision=precision, row_s=row_s, many_s=many_s, loss=loss)

    return Measured(
        machine=machine(1),
        times=(
            times("exact", 3e-3, 1e-3, 0.0),
            times("native", 1.2e-3, 3e-4, loss_of_native),
            times("native", 1.2e-3, widened_s, loss_of_native, "bfloat16"),
            times("blocks", 1e-3, 1e-3, 0.001),
        ),
    )


def test_the_fastest_that_loses_little_is_best() -> None:
    assert measured().best() == INTEGERS
    assert measured(loss_of_native=0.02).best() == BLOCKS
    assert measured(widened_s=2e-4).best() == WIDENED
    assert measured(widened_s=2e-4).best(["float32"]) == INTEGERS


@pytest.mark.skipif(not can_widen(), reason="no products of widened integers here")
def test_a_precision_is_chosen_with_the_form_unless_one_is_named(bundle: Path) -> None:
    manifest = Bundle.open(bundle).manifest
    keep(measured(widened_s=2e-4), manifest, 1)
    for form, precision, products in (
        ("auto", "auto", WIDENED),
        ("auto", "float32", INTEGERS),
        ("native", "auto", INTEGERS),
        ("blocks", "auto", BLOCKS),
    ):
        with Generator.load(
            bundle, context=64, threads=1, dense_form=form, dense_precision=precision
        ) as generator:
            backend: Any = generator.loaded.backend
            assert (backend.dense_form, backend.dense_precision) == products
    keep(measured(loss_of_native=0.02), manifest, 1)
    with Generator.load(bundle, context=64, threads=1, dense_precision="bfloat16") as generator:
        backend = generator.loaded.backend
        assert (backend.dense_form, backend.dense_precision) == WIDENED


def test_what_was_measured_is_chosen(bundle: Path) -> None:
    manifest = Bundle.open(bundle).manifest
    assert chosen_products(manifest, 1) == default_products()
    keep(measured(loss_of_native=0.02), manifest, 1)
    assert chosen_products(manifest, 1) == BLOCKS
    assert chosen_products(manifest, 2) == default_products()  # other threads are another measurement
    assert chosen_products(otherwise_rounded(manifest), 1) == default_products()
    with Generator.load(bundle, context=64, threads=1) as generator:
        assert generator.loaded.backend.dense_form == "blocks"  # type: ignore[attr-defined]


def test_products_of_our_own_are_the_default_where_they_are_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    for fast, form in ((True, "native"), (False, "blocks")):
        monkeypatch.setattr(native, "is_fast", lambda: fast)  # noqa: B023 (called in this turn)
        assert default_products() == (form, "float32")


def otherwise_rounded(manifest: Manifest) -> Manifest:
    """The same checkpoint in the same format, with other numbers: calibrated on another text, say."""
    name = next(name for name in manifest.files if name.startswith("onnx/weights/"))
    changed = manifest.files[name].model_copy(update={"sha256": "0" * 64})
    return manifest.model_copy(update={"files": {**manifest.files, name: changed}})


@pytest.mark.parametrize("content", ["", "{}", '{"machine": {}, "times": [{"form": "fast"}]}', "\x00"])
def test_a_broken_file_is_ignored_with_a_warning(
    bundle: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    manifest = Bundle.open(bundle).manifest
    path = choice_file(manifest, 1)
    path.parent.mkdir(parents=True)
    path.write_text(content)
    assert chosen_products(manifest, 1) == default_products()
    assert "it is ignored" in caplog.text


def test_a_user_without_a_home_gets_the_default(bundle: Path) -> None:
    manifest = Bundle.open(bundle).manifest
    with nameless_user():
        assert chosen_products(manifest, 1) == default_products()
        with pytest.raises(OutputError, match="set XDG_CACHE_HOME"):
            choice_file(manifest, 1)


# Memory


def test_a_tied_table_counts_twice(bundle: Path) -> None:
    """As a table, and packed as the head's matrix."""
    model = Bundle.open(bundle).manifest.model
    assert model.weights is not None
    assert weight_bytes(model) == model.weight_bytes + (model.weights.table_bytes if model.tied else 0)
