"""Mixtures of experts in a dense graph, as the exporter lays them out with standard operators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from h2o_runtime.dense_graphs.graph_view import GraphView


@dataclass(frozen=True)
class Mixture:
    """x [n, D] → out [n, D]: each row goes to the experts that it chose, and their results are weighed and added.

    chosen  int64 [n, k]: the experts of a row
    shares  float32 [n, k]: the weight of each
    said    the results of all experts, in their order: [rows that chose it, D]; nothing else reads them
    """

    x: str
    chosen: str
    shares: str
    said: tuple[str, ...]
    out: str


class _OtherNodesError(LookupError):
    """What makes a tensor is not what a mixture has there."""


def mixtures(view: GraphView, inputs: Mapping[str, str]) -> Iterator[Mixture]:
    """All of a graph, each found from its sum upward. `inputs` are what MLPs read, by their results."""
    for node in view.graph.node:
        if node.op_type == "ReduceSum":
            try:
                yield _mixture(view, node, inputs)
            except _OtherNodesError:
                continue


def _mixture(view: GraphView, total: Any, inputs: Mapping[str, str]) -> Mixture:
    slots, weights = _up(view, total.input[0], "Mul").input
    together, back = _up(view, slots, "Reshape", "Gather").input
    said = tuple(_up(view, together, "Concat").input)
    order = _up(view, back, "TopK").input[0]
    rows = [inputs.get(name, "") for name in said]
    split = _up(view, rows[0], "Split")
    x, tokens = _up(view, split.input[0], "Gather").input
    alone = all(len(view.readers(name)) == 1 for name in said)
    if not alone or list(split.output) != rows or _up(view, tokens, "Div").input[0] != order:
        raise _OtherNodesError
    return Mixture(
        x,
        chosen=_up(view, order, "TopK", "Reshape").input[0],
        shares=_up(view, weights, "Unsqueeze").input[0],
        said=said,
        out=total.output[0],
    )


def _up(view: GraphView, tensor: str, *op_types: str) -> Any:
    """The last of the nodes with these operators, from the one that makes `tensor` along first inputs."""
    node = None
    for op_type in op_types:
        node = view.maker(tensor, op_type)
        if node is None:
            raise _OtherNodesError
        tensor = node.input[0]
    return node
