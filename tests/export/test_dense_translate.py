"""Programs become ONNX graphs without decompositions where they can, and compute what torch computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from h2o_export.checkpoints import open_checkpoint
from h2o_export.dense import graphs
from h2o_export.dense.trace import trace
from h2o_export.dense.translate import to_onnx
from h2o_export.operators.opset import OPSET

EXAMPLE = Path(__file__).parents[2] / "examples" / "tiny-llama"


class Casts(nn.Module):
    """Casts that change a type, casts that do not, and one whose result is an output."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        half = x.float().to(x.device).half()
        return half.float() + x, (x * 2).float()


class Promoted(nn.Module):
    """Operators on tensors of several types, and a quotient of integers."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        place = x.argmax(1, keepdim=True)
        return x * place, place / 3, x.half() + x, torch.where(x > 0.5, place, x)


class Decomposed(nn.Module):
    """An operator that ONNX's library lacks."""

    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (nn.functional.hardshrink(x, 0.5),)


class InPlace(nn.Module):
    """The input is doubled, and so is what was read of it before."""

    def forward(self, x: Tensor) -> tuple[Tensor]:
        copy = x + 1
        before = copy[:, :2]
        copy.mul_(2)
        return (before + copy[:, 2:],)


@pytest.fixture
def decomposed(monkeypatch: pytest.MonkeyPatch) -> list[ExportedProgram]:
    """The programs that torch decomposes, which takes it longer than all else."""
    programs = []
    decompose = ExportedProgram.run_decompositions

    def counted(program: ExportedProgram, decompositions: Any = None) -> ExportedProgram:
        programs.append(program)
        return decompose(program, decompositions)

    monkeypatch.setattr(ExportedProgram, "run_decompositions", counted)
    return programs


@pytest.mark.parametrize(
    ("module", "times"),
    [(Casts(), 0), (Promoted(), 0), (Decomposed(), 1), (InPlace(), 1)],
    ids=["casts", "several types", "an operator that ONNX lacks", "in place"],
)
def test_a_graph_computes_what_the_module_computes(
    module: nn.Module, times: int, decomposed: list[ExportedProgram]
) -> None:
    n = Dim("n", min=1, max=64)
    program = torch.export.export(module, (torch.rand(8, 4),), dynamic_shapes=({0: n},), strict=False)
    model = to_onnx(program, opset_version=OPSET, input_names=["x"]).model
    assert len(decomposed) == times
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())
    for rows in (1, 5):
        x = torch.rand(rows, 4)
        expected = module(x.clone())
        for actual, theirs in zip(session.run(None, {"x": x.numpy()}), expected, strict=True):
            np.testing.assert_allclose(actual, theirs.numpy(), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_dense_graphs_are_not_decomposed(
    dtype: str, decomposed: list[ExportedProgram], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "trace", trace)  # not what an earlier test has traced
    plan = open_checkpoint(str(EXAMPLE)).plan
    for dense in graphs.dense_graphs(plan)[-2:]:
        graphs.trace_graph(dense, plan, dtype)
    assert not decomposed
