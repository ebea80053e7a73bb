"""From a torch module on the meta device to an ONNX graph whose weights are still to be bound."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from inspect import signature
from typing import Any

import onnx_ir as ir
import onnxscript.optimizer
import torch
from torch import Tensor, nn

from h2o_export.dense.translate import to_onnx
from h2o_export.operators.opset import OPSET
from h2o_runtime.bundles.manifest import TensorSpec
from h2o_runtime.limits import MAX_CONTEXT


def trace(
    module: nn.Module, inputs: Sequence[TensorSpec], outputs: Sequence[str], name: str
) -> tuple[ir.Model, list[ir.Value]]:
    """Trace `module`, which is on the meta device, with a free size n.

    Returns the model and those initializers that stand for parameters; they have a dtype and a shape but no
    data, and keep the parameters' names.
    """
    n = torch.export.Dim("n", min=1, max=MAX_CONTEXT)
    examples = [_example(spec) for spec in inputs]
    free = [{axis: n for axis, size in enumerate(spec.shape) if isinstance(size, str)} for spec in inputs]
    shapes = _by_argument(module, free)
    with _quiet():
        program = torch.export.export(module.eval(), tuple(examples), dynamic_shapes=shapes, strict=False)
        model = to_onnx(
            program,
            opset_version=OPSET,
            input_names=[spec.name for spec in inputs],
            output_names=list(outputs),
            dynamic_shapes=shapes,  # for their names
            optimize=False,  # its constant folding would read weights that do not exist yet
        ).model
        names = dict(module.named_parameters())
        parameters = [value for key, value in model.graph.initializers.items() if key in names]
        for value in parameters:
            value.const_value = None
        onnxscript.optimizer.optimize_ir(model)
    model.graph.name = name
    model.producer_name, model.producer_version = "h2o-export", None
    _name_nodes(model)
    return model, parameters


def _example(spec: TensorSpec) -> Tensor:
    """Something to trace with: any n above 1 traces alike."""
    shape = [8 if isinstance(size, str) else size for size in spec.shape]
    return torch.empty(shape, dtype=getattr(torch, spec.dtype), device="meta")


def _by_argument(module: nn.Module, values: Sequence[Any]) -> tuple[Any, ...]:
    """One value a tensor, as `forward` takes tensors: those of *arguments together."""
    bound = signature(module.forward).bind(*values)
    return tuple(bound.arguments.values())


def _name_nodes(model: ir.Model) -> None:
    """Name each node by the module it came from (mlp/gate_proj/Gemm), and drop the tracer's stack traces."""
    taken: dict[str, int] = {}
    for node in model.graph:
        scopes = node.metadata_props.get("pkg.torch.onnx.name_scopes", "")
        path = scopes.strip("[]").replace("'", "").split(", ")
        module = path[-2].replace(".", "/") if len(path) > 1 else ""
        name = f"{module}/{node.op_type}".lstrip("/")
        taken[name] = taken.get(name, 0) + 1
        node.name = name if taken[name] == 1 else f"{name}_{taken[name]}"
        node.metadata_props.clear()
        for output in node.outputs:
            output.metadata_props.clear()
            if not output.is_graph_output():
                output.name = f"{node.name}:{output.index()}" if len(node.outputs) > 1 else node.name
    for value in (*model.graph.inputs, *model.graph.outputs, *model.graph.initializers.values()):
        value.metadata_props.clear()
    model.metadata_props.clear()
    model.graph.metadata_props.clear()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the tracer's notes about torchvision, dedupe and renamed axes off the user's terminal."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
