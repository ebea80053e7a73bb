"""Joins products with 8-bit weights that read the same activations into one product, and splits its columns.

TensorRT for RTX joins such products itself, but then stores their weights as floats in the plan: q, k, v,
gate and up take two to four times their bytes. If they are already one product, it keeps the integers
(docs/weights.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from h2o_runtime.dense_graphs.matrices import QuantizedProduct, quantized_products


def join_products(model: Any, folder: Path) -> None:
    """Rewrite `model`, whose weights are in files below `folder`. The joined weights become part of the
    model.
    """
    together: dict[str, list[QuantizedProduct]] = {}
    for product in quantized_products(model.graph):
        if product.bits == 8 and not product.transposed:
            together.setdefault(product.product.input[0], []).append(product)
    groups = [products for products in together.values() if len(products) > 1]
    for products in groups:
        _join(model.graph, products, folder)


def _join(graph: Any, products: Sequence[QuantizedProduct], folder: Path) -> None:
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    first = products[0]
    name = f"{first.product.input[0]}/joined"

    def beside(names: Sequence[str], joined: str) -> Any:
        """Matrices [K, N] with the same K, side by side."""
        arrays = [numpy_helper.to_array(tensors[each], str(folder)) for each in names]
        return numpy_helper.from_array(np.concatenate(arrays, axis=1), joined)

    columns = np.array([tensors[each.weight].dims[1] for each in products], np.int64)
    made = [
        beside([each.weight for each in products], f"{name}/weight"),
        beside([each.scales for each in products], f"{name}/scales"),
        numpy_helper.from_array(columns, f"{name}/columns"),
    ]
    floats = helper.make_node("DequantizeLinear", [made[0].name, made[1].name], [f"{name}/floats"])
    floats.attribute.extend(first.dequantize.attribute)
    nodes = [
        floats,
        helper.make_node("MatMul", [first.product.input[0], f"{name}/floats"], [name]),
        helper.make_node(
            "Split", [name, made[2].name], [each.product.output[0] for each in products], axis=1
        ),
    ]
    place = list(graph.node).index(first.product)
    for node in reversed(nodes):
        graph.node.insert(place, node)
    for each in products:
        graph.node.remove(each.dequantize)
        graph.node.remove(each.product)
        graph.initializer.remove(tensors[each.weight])
        graph.initializer.remove(tensors[each.scales])
    graph.initializer.extend(made)
