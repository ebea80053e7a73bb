"""Graphs as ONNX Runtime's CPU runs them fastest compute what the portable ones do."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import inliner
from tests import bundles

from h2o_runtime import Generator
from h2o_runtime.backends.onnxruntime import OnnxRuntimeBackend
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.bundles.manifest import Manifest
from h2o_runtime.dense_graphs.fusion import fuse
from h2o_runtime.errors import BackendError
from h2o_runtime.names import DenseForm


def old_bundle(folder: Path, to: Path) -> Path:
    """As earlier versions exported it: standard operators alone, in one graph."""
    shutil.copytree(folder, to)
    manifest = json.loads((to / "manifest.json").read_text())
    for graph in Manifest.read(folder).dense_graphs():
        model = onnx.load(str(to / graph.file), load_external_data=False)
        content = inliner.inline_local_functions(model).SerializeToString()
        (to / graph.file).write_bytes(content)
        manifest["files"][graph.file]["bytes"] = len(content)
    (to / "manifest.json").write_text(json.dumps(manifest))
    return to


@pytest.mark.parametrize("form", ["native", "exact"])
def test_an_old_bundle_runs_and_is_told(
    shared_folder: Path, tmp_path: Path, form: DenseForm, caplog: pytest.LogCaptureFixture
) -> None:
    new = bundles.named(shared_folder, "qwen3-g2-d128")[1]
    found = []
    for folder in (new, old_bundle(new, tmp_path / "old")):
        caplog.clear()
        with Generator.load(folder, context=16, threads=1, device="cpu", dense_form=form) as generator:
            found.append([np.array(generator.prefill([1, 2, 3])), np.array(generator.decode(4))])
        told = [record.getMessage() for record in caplog.records if record.name.endswith("onnxruntime")]
        if folder == new:
            assert not told
    np.testing.assert_allclose(*found, atol=2e-5 * np.abs(found[0]).max())
    assert told == [
        f"{folder}: an earlier version exported it, and its graphs do not name their norms, gates and rotations: "
        "every step is slower than it could be; export the checkpoint again"
    ]


def test_functions_of_half_precision_become_their_bodies(shared_folder: Path) -> None:
    folder = bundles.named(
        shared_folder, "llama-g2-d64-llama3", "-half-int8", weights="int8", dtype="float16"
    )[1]
    made = fuse(onnx.load(folder / "onnx" / "dense_01.onnx", load_external_data=False))
    assert not made.functions
    assert {node.domain for node in made.graph.node} == {""}


def test_without_onnx_it_is_said_what_to_install(
    shared_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = bundles.named(shared_folder, "llama-g1-d32")[1]
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(BackendError, match=r"needs the package onnx: pip install 'h2o-edge\[cpu\]'"):
        OnnxRuntimeBackend(Bundle.open(folder, check_graphs=False)).activate()
