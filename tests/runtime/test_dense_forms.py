"""Forms of integer weights on ONNX Runtime: what each computes, which is chosen, and what it takes in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from tests import bundles

from h2o_runtime import Generator, PrefillConfig
from h2o_runtime.backends.select import make_backend
from h2o_runtime.bundle import Bundle
from h2o_runtime.errors import ConfigError
from h2o_runtime.footprint import weight_bytes
from h2o_runtime.manifest import Manifest
from h2o_runtime.names import DenseForm
from h2o_runtime.ort import native
from h2o_runtime.ort.choice import FormTimes, Measured, choice_file, chosen_form, default_form, keep, machine
from h2o_runtime.ort.forms import one_scale
from h2o_runtime.ort.matrices import Matrix

TIED, UNTIED = "llama-g2-d64-llama3", "qwen2-g4-d32"
FULL = PrefillConfig(policy="full")


@pytest.fixture(
    scope="module", params=[(TIED, "int8"), (TIED, "int4"), (UNTIED, "int8"), (UNTIED, "int4+offset")]
)
def bundle(request: pytest.FixtureRequest, shared_folder: Path) -> Path:
    shape, weights = request.param
    return bundles.named(shared_folder, shape, f"-{weights}", weights=weights)[1]


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def logits(bundle: Path, form: DenseForm, tokens: int = 48) -> tuple[Any, Any]:
    """After a prompt, and after one more token."""
    ids = bundles.random_ids(tokens)
    with Generator.load(bundle, context=64, threads=1, form=form) as generator:
        first = generator.prefill(ids, FULL).copy()
        return first, generator.decode(7).copy()


def test_every_form_computes_the_model(bundle: Path) -> None:
    exact = logits(bundle, "exact")
    for form in ("native", "blocks", "rows", "both"):
        for found, expected in zip(logits(bundle, form), exact, strict=True):  # type: ignore[arg-type]
            error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
            assert 1e-5 < error < 0.05, form


def test_both_has_rows_for_many_and_blocks_for_one(bundle: Path) -> None:
    ids, found = bundles.random_ids(48), {}
    for form in ("both", "rows"):
        with Generator.load(bundle, context=64, threads=1, form=form) as generator:  # type: ignore[arg-type]
            found[form] = generator.logprobs(ids, FULL)  # the head too has many rows here
    np.testing.assert_array_equal(found["both"], found["rows"])
    one = logits(bundle, "both", tokens=1)
    np.testing.assert_array_equal(one, logits(bundle, "blocks", tokens=1))


def test_a_bundle_of_floats_has_no_form_of_integers(shared_folder: Path) -> None:
    folder = bundles.named(shared_folder, TIED)[1]
    with Generator.load(folder, context=64) as generator:
        assert generator.backend.form == ("native" if native.is_fast() else "exact")  # type: ignore[attr-defined]
    for form in ("blocks", "rows", "both"):
        with pytest.raises(ConfigError, match=f"form {form} does nothing with weights that are floats"):
            Generator.load(folder, context=64, form=form)  # type: ignore[arg-type]


def test_a_form_is_for_a_cpu_alone(bundle: Path) -> None:
    gpu = Mock(memory="cuda")
    with pytest.raises(ConfigError, match="form rows does nothing here"):
        make_backend("onnxruntime", Bundle.open(bundle), gpu, 1, 64, "rows")
    with pytest.raises(ConfigError, match="form native does nothing here"):
        make_backend("tensorrt", Bundle.open(bundle), gpu, 1, 64, "native")


def test_blocks_become_rows_within_half_a_step() -> None:
    draw = np.random.default_rng(0)
    scales = draw.random((6, 4), np.float32) + 0.1
    matrix = Matrix(draw.integers(-128, 128, (6, 128)).astype(np.int8), scales)
    values = (matrix.q.reshape(6, 4, 32) * scales[..., None]).reshape(6, 128)
    q, one = one_scale(matrix)
    assert np.abs(q.astype(int)).max() <= 127
    assert (np.abs(q * one[:, None] - values) <= 0.501 * one[:, None]).all()


# Choosing


def measured(loss_of_rows: float = 0.0, both_s: float = 1e-9) -> Measured:
    return Measured(
        machine=machine(1),
        forms={
            "exact": FormTimes(row_s=3e-3, many_s=1e-3, loss=0.0),
            "blocks": FormTimes(row_s=1e-3, many_s=1e-3, loss=0.001),
            "rows": FormTimes(row_s=1.2e-3, many_s=3e-4, loss=loss_of_rows),
            "both": FormTimes(row_s=both_s, many_s=both_s, loss=0.0),
        },
    )


def test_the_fastest_that_loses_little_and_has_weights_once_is_best() -> None:
    assert measured().best == "rows"
    assert measured(loss_of_rows=0.02).best == "blocks"


def test_what_was_measured_is_chosen(bundle: Path) -> None:
    manifest = Bundle.open(bundle).manifest
    assert chosen_form(manifest, 1) == default_form()
    keep(measured(), manifest, 1)
    assert chosen_form(manifest, 1) == "rows"
    assert chosen_form(manifest, 2) == default_form()  # other threads are another measurement
    assert chosen_form(otherwise_rounded(manifest), 1) == default_form()
    with Generator.load(bundle, context=64, threads=1) as generator:
        assert generator.backend.form == "rows"  # type: ignore[attr-defined]


def test_products_of_our_own_are_the_default_where_they_are_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    for fast, form in ((True, "native"), (False, "blocks")):
        monkeypatch.setattr(native, "is_fast", lambda: fast)  # noqa: B023 (called in this turn)
        assert default_form() == form


def otherwise_rounded(manifest: Manifest) -> Manifest:
    """The same checkpoint in the same format, with other numbers: calibrated on another text, say."""
    name = next(name for name in manifest.files if name.startswith("onnx/weights/"))
    changed = manifest.files[name].model_copy(update={"sha256": "0" * 64})
    return manifest.model_copy(update={"files": {**manifest.files, name: changed}})


@pytest.mark.parametrize("content", ["", "{}", '{"machine": {}, "forms": {"fast": {}}}', "\x00"])
def test_a_broken_file_is_ignored_with_a_warning(
    bundle: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    manifest = Bundle.open(bundle).manifest
    path = choice_file(manifest, 1)
    path.parent.mkdir(parents=True)
    path.write_text(content)
    assert chosen_form(manifest, 1) == default_form()
    assert "it is ignored" in caplog.text


# Memory


def test_the_footprint_knows_the_form(bundle: Path) -> None:
    model = Bundle.open(bundle).manifest.model
    assert model.weights is not None
    tied = model.weights.table_bytes if model.tied else 0
    blocks, rows, both = (weight_bytes(model, form) for form in ("blocks", "rows", "both"))  # type: ignore[arg-type]
    assert weight_bytes(model, "native") == blocks
    assert blocks == model.weight_bytes + tied
    assert rows - blocks == model.weights.projection_elements - model.weights.projection_bytes
    assert both - blocks == model.weights.projection_elements
