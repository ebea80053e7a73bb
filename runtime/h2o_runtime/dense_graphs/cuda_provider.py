"""Dense graphs for ONNX Runtime's CUDA provider.

A rotation becomes one node of ONNX Runtime's own in place of some ten. DequantizeLinear has blocks only of 4 bits
there. So a product with integer weights becomes MatMulNBits, with activations as they are. That node multiplies
one row by integers. For more rows it makes floats of the matrix once in a call, in scratch memory, for a GEMM.
Rows that are looked up become floats with Mul.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from h2o_runtime.dense_graphs.fusion import MICROSOFT, import_microsoft, rotated
from h2o_runtime.dense_graphs.graph_view import GraphView, keep_needed
from h2o_runtime.dense_graphs.integer_products import unsigned
from h2o_runtime.dense_graphs.matrices import Matrix, QuantizedProduct, quantized_products

FLOAT_ACTIVATIONS = 1  # MatMulNBits' accuracy_level; the CUDA provider has no other


def rotated_by_one_node(model: Any) -> Any:
    """A ModelProto, changed: RotaryEmbedding in place of the function Rotation, in float32 as its body."""
    from onnx import TensorProto, helper

    graph = model.graph
    view = GraphView(graph)
    rotations = {rotation.out: rotation for rotation in view.rotations()}
    halves = {rotation.out: rotation for rotation in view.rotations("float16")}
    nodes = list[Any]()
    for node in graph.node:
        out = node.output[0]
        if out in rotations:
            nodes += rotated(rotations[out], graph)
        elif rotation := halves.get(out):
            x, turned = f"{out}/float32", f"{out}/turned/float32"
            nodes.append(helper.make_node("Cast", [rotation.x], [x], name=x, to=TensorProto.FLOAT))
            nodes += rotated(replace(rotation, x=x, out=turned), graph)
            nodes.append(helper.make_node("Cast", [turned], [out], name=out, to=TensorProto.FLOAT16))
        else:
            nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    if rotations or halves:
        import_microsoft(model)
    keep_needed(graph)
    return model


def without_dequantization(model: Any, folder: Path) -> Any:
    """A ModelProto with files in `folder` → one with the same numbers, for this provider. Changed weights are
    inside.
    """
    import onnx

    graph = model.graph
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    products = {product.product.output[0]: product for product in quantized_products(graph)}
    nodes, weights = list[Any](), list[Any]()
    for node in graph.node:
        if product := products.get(node.output[0]):
            made = _multiplied(product, tensors, folder)
        elif node.op_type == "DequantizeLinear" and node.input[0] not in tensors:
            made = _looked_up(node)
        else:
            made = [node], []
        nodes += made[0]
        weights += made[1]
    result = onnx.ModelProto(ir_version=model.ir_version)
    result.functions.extend(model.functions)
    result.opset_import.extend(model.opset_import)
    import_microsoft(result)
    initializers = [*graph.initializer, *weights]
    result.graph.CopyFrom(onnx.helper.make_graph(nodes, graph.name, graph.input, graph.output, initializers))
    keep_needed(result.graph)
    return result


def _multiplied(
    product: QuantizedProduct, tensors: Mapping[str, Any], folder: Path
) -> tuple[list[Any], list[Any]]:
    """The product's node; its weights, uint8 [N, K / block size, bytes of a block], and their scales."""
    from onnx import helper, numpy_helper

    matrix = Matrix.read(product, tensors, folder)
    (n, k), bits, block = matrix.q.shape, product.bits, product.block_size
    out = product.product.output[0]
    q, scales = f"{out}/integers", f"{out}/scales"
    node = helper.make_node(
        "MatMulNBits",
        [product.product.input[0], q, scales],
        [out],
        name=out,
        domain=MICROSOFT,
        K=k,
        N=n,
        bits=bits,
        block_size=block,
        accuracy_level=FLOAT_ACTIVATIONS,
    )
    integers = unsigned(matrix.q, bits).reshape(n, k // block, block * bits // 8)
    return [node], [
        numpy_helper.from_array(integers, q),
        numpy_helper.from_array(np.ascontiguousarray(matrix.scales), scales),
    ]


def _looked_up(node: Any) -> tuple[list[Any], list[Any]]:
    """Rows of integers [n, K] and their scales [n, K / block size] → floats [n, K]."""
    from onnx import helper, numpy_helper

    (rows, scales), out = node.input, node.output[0]
    block = helper.get_node_attr_value(node, "block_size")
    floats, blocks, steps, scaled = (f"{out}/{part}" for part in ("floats", "blocks", "steps", "scaled"))
    shapes = {"in_blocks": [0, -1, block], "last": [2], "flat": [0, -1]}
    in_blocks, last, flat = (f"{out}/{name}" for name in shapes)
    nodes = [
        helper.make_node("CastLike", [rows, scales], [floats], name=floats),
        helper.make_node("Reshape", [floats, in_blocks], [blocks], name=blocks),
        helper.make_node("Unsqueeze", [scales, last], [steps], name=steps),
        helper.make_node("Mul", [blocks, steps], [scaled], name=scaled),
        helper.make_node("Reshape", [scaled, flat], [out], name=out),
    ]
    values = (
        numpy_helper.from_array(np.array(shape, np.int64), f"{out}/{name}") for name, shape in shapes.items()
    )
    return nodes, list(values)
