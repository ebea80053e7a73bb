"""The last dense graph without the LM head: what it makes of a token before the vocabulary comes in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from h2o_runtime.backend import HIDDEN
from h2o_runtime.dense_graphs.graph_view import keep_needed, make_node
from h2o_runtime.errors import BundleError

_HEAD = "lm_head.weight"  # the exporter's name, whatever the checkpoint calls it
_PRODUCTS = ("Gemm", "MatMul")


def without_head(model: Any, path: Path) -> Any:
    """A ModelProto from `path`, changed: its only output is `hidden` [n, D], which the LM head would read.

    Raises BundleError for a graph whose head is not found.
    """
    from onnx import ValueInfoProto

    graph = model.graph
    if known := [value for value in graph.output if value.name == HIDDEN]:
        del graph.output[:]
        graph.output.extend(known)
        keep_needed(graph)
        return model
    made = ValueInfoProto()
    made.CopyFrom(next(value for value in graph.input if value.name == "residual"))  # equal type and shape
    made.name = HIDDEN
    graph.node.append(make_node("Identity", [_read_by_head(graph, path)], HIDDEN))
    del graph.output[:]
    graph.output.append(made)
    keep_needed(graph)
    return model


def _read_by_head(graph: Any, path: Path) -> str:
    """The activations that are multiplied with the head's matrix, whatever its weight format."""
    of_matrix = {_HEAD}
    padded = {node.output[0]: str(node.input[0]) for node in graph.node if node.op_type == "Pad"}
    for node in graph.node:
        if of_matrix.isdisjoint(node.input):
            continue
        if node.op_type in _PRODUCTS:
            x = str(node.input[0])
            return padded.get(x, x)
        of_matrix.update(node.output)
    raise BundleError(f"{path}: no product with {_HEAD} is found in it; export the checkpoint again")
