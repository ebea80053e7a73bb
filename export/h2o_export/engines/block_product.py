"""Weights of 4 bits with plugins: replaces DequantizeLinear and MatMul by BlockProduct.

The bytes of the weights bound decode. If TensorRT has no kernel for 4-bit weights, it converts them to floats
in every call.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from h2o_export.engines.plugin_graph import DOMAIN, VERSION, name_as_plugin
from h2o_runtime.dense_graphs.matrices import Matrix, QuantizedProduct, quantized_products
from h2o_runtime.dense_operators import BLOCK_PRODUCT, PRODUCT_BLOCK

MULTIPLE = 8  # outputs must be a multiple of this


def fits(product: QuantizedProduct) -> bool:
    """Whether BlockProduct can replace the node, as far as the nodes show; outputs must also be a multiple of
    8.
    """
    return product.bits == 4 and product.block_size == PRODUCT_BLOCK and not product.transposed


def use_block_products(model: Any, folder: Path) -> None:
    """Rewrite `model`, whose weights are in files below `folder`. The packed words become part of the model.

    A separate product adds the offsets, and stays as it is.
    """
    graph = model.graph
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    found = [
        product
        for product in quantized_products(graph)
        if fits(product) and tensors[product.weight].dims[1] % MULTIPLE == 0
    ]
    for product in found:
        matrix = Matrix.read(product, tensors, folder)
        weight = tensors[product.weight]
        weight.CopyFrom(numpy_helper.from_array(pack(matrix.q), product.weight))
        node = product.product
        inputs = [node.input[0], product.weight, product.scales]
        node_of_blocks = helper.make_node(
            BLOCK_PRODUCT.name, inputs, node.output, name=node.name, domain=DOMAIN
        )
        name_as_plugin(node_of_blocks)
        node.CopyFrom(node_of_blocks)
        graph.node.remove(product.dequantize)
    if found and all(opset.domain != DOMAIN for opset in model.opset_import):
        model.opset_import.append(helper.make_opsetid(DOMAIN, int(VERSION)))


def pack(q: NDArray[np.int8]) -> NDArray[np.int32]:
    """Integers from -8 to 7, [N, K] → words [K / 32, N, 4] in the layout of BlockProduct."""
    outputs, inputs = q.shape
    eights = q.reshape(outputs, inputs // PRODUCT_BLOCK, 4, 8)
    words = np.zeros(eights.shape[:3], np.uint32)  # [N, K / 32, t]
    for i in range(8):
        place = i // 2 + 4 * (i % 2)
        words |= (eights[..., i] + np.int8(8)).astype(np.uint32) << np.uint32(4 * place)
    quads = words.reshape(outputs // 4, 4, -1, 4)  # [N / 4, j, K / 32, t]
    packed = np.ascontiguousarray(quads.transpose(2, 0, 3, 1)).reshape(-1, outputs, 4)
    return packed.view(np.int32)
