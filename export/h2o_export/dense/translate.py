"""From torch's exported program to ONNX, without the decompositions that torch runs in between.

They trace the program twice more, which takes longer than all other steps together. Programs of this package
need none: ONNX's library translates their operators as they are, once casts are written in its way.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

aten = torch.ops.aten


def to_onnx(program: ExportedProgram, **options: Any) -> torch.onnx.ONNXProgram:
    """`torch.onnx.export` of a program, whose casts are rewritten in place. Options are those of that function.

    A program that changes tensors in place, or has an operator that ONNX's library lacks, is decomposed.
    """
    _rewrite_casts(program)
    if not any(_changes_its_input(node) for node in program.graph.nodes):
        vars(program)["run_decompositions"] = lambda table: program
        with contextlib.suppress(torch.onnx.OnnxExporterError):
            return _export(program, options)
        del vars(program)["run_decompositions"]
    return _export(program, options)


def _export(program: ExportedProgram, options: dict[str, Any]) -> torch.onnx.ONNXProgram:
    exported = torch.onnx.export(program, dynamo=True, verbose=False, **options)
    assert exported is not None
    return exported


def _rewrite_casts(program: ExportedProgram) -> None:
    """`x.to(…)` becomes a copy, or x itself where that is of the type and device; what torch asserts of it goes."""
    for node in list(program.graph.nodes):
        if node.target is aten._assert_tensor_metadata.default:
            program.graph.erase_node(node)
        elif node.target in (aten.to.dtype, aten.to.dtype_layout):
            _rewrite_cast(program, node)


def _rewrite_cast(program: ExportedProgram, node: fx.Node) -> None:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    before, after = source.meta["val"], node.meta["val"]
    if before.dtype != after.dtype:
        changes = {"dtype": after.dtype}
    elif before.device != after.device:
        changes = {"device": after.device}
    else:
        node.replace_all_uses_with(source)
        program.graph.erase_node(node)
        program.graph_signature.replace_all_uses(node.name, source.name)
        return
    node.target, node.args, node.kwargs = aten._to_copy.default, (source,), changes


def _changes_its_input(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable
