"""A traced graph that is read from a file is the one that was traced."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest

from h2o_export.checkpoints import open_checkpoint
from h2o_export.dense import graphs
from tests import bundles, traces

EXAMPLE = Path(__file__).parents[1] / "examples" / "tiny-llama"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(traces, "FOLDER", tmp_path)
    return tmp_path


def described(traced: traces.Traced) -> tuple[bytes, list[tuple[object, ...]]]:
    """The graph, and its parameters: all have no data."""
    model, parameters = traced
    names = {value.name for value in parameters}
    order = [value for value in model.graph.initializers.values() if value.name in names]
    assert order == parameters
    assert {value.const_value for value in parameters} == {None}
    return (
        ir.to_proto(model).SerializeToString(),
        [(value.name, value.dtype, value.shape) for value in parameters],
    )


def test_a_file_holds_all_of_a_traced_graph(folder: Path) -> None:
    bundles.look_up_once()
    config = open_checkpoint(str(EXAMPLE)).config
    trace = getattr(graphs.trace_graph, "__wrapped__", graphs.trace_graph)
    traced = trace(graphs.dense_graphs(config)[-1], config, "float32")
    traces.write(*traced, folder / "graph.onnx")
    assert described(traces.read(folder / "graph.onnx")) == described(traced)


def test_a_graph_is_traced_once_for_each_model_and_type(folder: Path) -> None:
    """By a stand-in for the tracer, which counts its calls."""
    model = ir.Model(ir.Graph([], [], nodes=[], opset_imports={"": 21}, name="graph"), ir_version=10)
    calls = []

    def trace(dense: object, config: object, dtype: str) -> traces.Traced:
        calls.append((dense, config, dtype))
        return model, []

    config = open_checkpoint(str(EXAMPLE)).config
    first, *_, last = graphs.dense_graphs(config)
    asked = [
        (first, config, "float32"),
        (first, config, "float16"),
        (last, config, "float32"),
        (first, config.limited(512), "float32"),
    ]
    for _ in range(2):
        shared = traces._shared(trace)  # of another process
        for each in asked:
            shared(*each)
    assert calls == asked
    assert len(list(folder.glob("*.onnx"))) == len(asked)


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
