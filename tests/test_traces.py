"""A traced graph that is read from a file is the one that was traced."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx_ir as ir
import pytest

from h2o_export.checkpoints import open_checkpoint
from h2o_export.dense import graphs
from h2o_export.plan import Plan
from tests import traces

EXAMPLE = Path(__file__).parents[1] / "examples" / "tiny-llama"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(traces, "FOLDER", tmp_path)
    return tmp_path


def test_graphs_that_differ_in_their_weights_alone_are_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a stand-in for the tracer, which counts its calls."""
    calls = []

    def trace(module: object, inputs: object, outputs: object, name: str) -> traces.Traced:
        calls.append(name)
        return ir.Model(ir.Graph([], [], nodes=[], opset_imports={"": 21}, name=name), ir_version=10), []

    config = open_checkpoint(str(EXAMPLE)).config
    first, second, third, *_, last = graphs.dense_graphs(Plan.of(config))
    traced_anew = [
        (first, config, "float32"),
        (first, config, "float16"),
        (second, config, "float32"),
        (last, config, "float32"),
        (second, replace(config, rms_norm_eps=1e-3), "float32"),
        (second, replace(config, activation="gelu"), "float32"),
    ]
    alike = [
        (third, config, "float32"),
        (first, config.limited(512), "float32"),
        (last, replace(config, tied=not config.tied), "float32"),
    ]
    for _ in range(2):
        monkeypatch.setattr(graphs, "trace", traces._shared(trace))  # of another process
        for dense, its_config, dtype in (*traced_anew, *alike):
            model, _ = graphs.trace_graph(dense, Plan.of(its_config), dtype)
            assert model.graph.name == dense.name
    assert calls == [dense.name for dense, *_ in traced_anew]


def test_other_sources_are_traced_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = traces._sources()
    source = tmp_path / "export" / "layer.py"
    source.parent.mkdir()
    monkeypatch.setattr(traces, "REPO", tmp_path)
    monkeypatch.setattr(traces, "SOURCES", ("export",))
    hashes = {before}
    for text in ("a = 1", "a = 2"):
        source.write_text(text)
        hashes.add(traces._sources())
    assert len(hashes) == 3
