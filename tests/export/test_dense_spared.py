"""What torch's exporter is spared changes no graph, and its names are in the torch that is installed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir
import pytest
import torch
from torch import fx
from torch.onnx._internal.exporter import _fx_passes
from torch.onnx._internal.exporter._registration import ONNXRegistry

from h2o_export.checkpoints import open_checkpoint
from h2o_export.dense import graphs, spared
from h2o_export.dense.trace import trace

EXAMPLE = Path(__file__).parents[2] / "examples" / "tiny-llama"


@contextlib.contextmanager
def nothing() -> Iterator[None]:
    yield


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_graph_is_the_one_that_the_whole_exporter_makes(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "trace", trace)  # not what an earlier test has traced
    config = open_checkpoint(str(EXAMPLE)).config
    middle = graphs.dense_graphs(config)[1]

    def made() -> bytes:
        return ir.to_proto(graphs.trace_graph(middle, config, dtype)[0]).SerializeToString()

    ours = made()
    monkeypatch.setattr(spared, "capture", nothing)
    monkeypatch.setattr(spared, "translation", nothing)
    assert made() == ours


def test_the_names_are_there_and_stay_as_they_were() -> None:
    places = (
        (fx.config, "do_not_emit_stack_traces"),
        (ONNXRegistry, "from_torchlib"),
        (_fx_passes, "insert_type_promotion_nodes"),
        (_fx_passes, "decompose_with_registry"),
    )
    before = [vars(owner)[name] for owner, name in places]
    with spared.capture(), spared.translation(), spared.decompositions():
        assert not torch._dynamo.config.fake_tensor_cache_enabled
        assert all(
            vars(owner)[name] is not value for (owner, name), value in zip(places, before, strict=True)
        )
    assert [vars(owner)[name] for owner, name in places] == before
    assert torch._dynamo.config.fake_tensor_cache_enabled


def test_onnxs_library_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with spared.translation():
        first = ONNXRegistry.from_torchlib(18)
        assert ONNXRegistry().from_torchlib(opset_version=18) is not ONNXRegistry().from_torchlib(20)
    with spared.translation():
        assert ONNXRegistry.from_torchlib(18) is first
