"""Dense graphs for ONNX Runtime's CUDA provider.

Norms, rotations and gates become kernels of our own (plugins/ort/table_operator.cpp), a norm together with the
residual sum before it, and a rotation with the rest of each head that does not turn: elementwise kernels of ONNX
Runtime would read and write most of these numbers several times. DequantizeLinear has blocks only of 4 bits
there. So a product with integer weights becomes MatMulNBits, with activations as they are; with float16 activations
it becomes our IntegerProduct (plugins/ort/integer_product.cpp), which reads the integers alone for up to 16 rows,
and calls MatMulNBits for more, where a trial of it succeeds (.integer_product_trial). Rows that are looked up
become floats with Mul.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from h2o_plugins import NativeKernelsMissing, onnxruntime_cuda_operators
from h2o_runtime.dense_graphs.fusion import MICROSOFT
from h2o_runtime.dense_graphs.graph_view import (
    GraphView,
    import_domain,
    keep_needed,
    make_node,
    with_nodes,
)
from h2o_runtime.dense_graphs.integer_products import unsigned
from h2o_runtime.dense_graphs.matrices import Matrix, quantized_products
from h2o_runtime.dense_operators import DENSE_OPERATORS, RESIDUAL_NORM, RMS_NORM, ROTATION
from h2o_runtime.errors import BackendError
from h2o_runtime.operators import DOMAIN, VERSION

FLOAT_ACTIVATIONS = 1  # MatMulNBits' accuracy_level; the CUDA provider has no other
INTEGER_PRODUCT, MATMUL_NBITS = "IntegerProduct", "MatMulNBits"
LEAST_BLOCK = 32  # of IntegerProduct

LAST_OF_THREE = frozenset((-1, 2))  # the axis of a head's numbers
TO_THE_END = np.iinfo(np.int64).max


def operators() -> Path:
    """The library that ONNX Runtime loads. Raises BackendError if it is missing."""
    try:
        return onnxruntime_cuda_operators()
    except NativeKernelsMissing as error:
        raise BackendError(f"{error}, or use `device=cpu`") from None


def with_own_kernels(model: Any) -> Any:
    """A ModelProto, changed: functions with a kernel lose their bodies; a sum before a norm is a part of it, and so
    is of a rotation what it leaves as it is.
    """
    graph = model.graph
    view = GraphView(graph)
    sums: dict[str, Any] = {}  # by the norm that takes them
    for node in graph.node:
        if (node.domain, node.op_type) == (DOMAIN, RMS_NORM.name):
            added = _residual_sum(view, node.input[0])
            if added is not None and added not in sums.values():
                sums[node.output[0]] = added
    taken = {added.output[0] for added in sums.values()}
    nodes = list[Any]()
    for node in graph.node:
        out = node.output[0]
        if added := sums.get(out):
            inputs, outputs = [*added.input, node.input[1]], (added.output[0], out)
            fused = make_node(RESIDUAL_NORM.name, inputs, *outputs, name=out, domain=DOMAIN)
            fused.attribute.extend(node.attribute)
            nodes.append(fused)
        elif rotated := _rotated_first(view, node):
            nodes.append(make_node(ROTATION.name, rotated, out, domain=DOMAIN))
        elif out not in taken:
            nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    kernels = {operator.name for operator in DENSE_OPERATORS}
    bodies = [body for body in model.functions if body.domain != DOMAIN or body.name not in kernels]
    del model.functions[:]
    model.functions.extend(bodies)
    keep_needed(graph)
    return model


def _residual_sum(view: GraphView, tensor: str) -> Any | None:
    """The Add that makes a tensor of two computed ones, which have its shape."""
    added = view.maker(tensor, "Add")
    return None if added is None or any(name in view.constants for name in added.input) else added


def _rotated_first(view: GraphView, node: Any) -> list[str]:
    """x, cos and sin, where a node joins the first numbers of heads, rotated, with the rest; otherwise nothing."""
    if node.op_type != "Concat" or len(node.input) != 2 or node.attribute[0].i not in LAST_OF_THREE:
        return []
    rotation = view.maker(node.input[0], ROTATION.name, DOMAIN)
    if rotation is None:
        return []
    first, rest = view.slice(rotation.input[0]), view.slice(node.input[1])
    if first is None or rest is None or (first.x, first.stop) != (rest.x, rest.start):
        return []
    whole = {first.axis, rest.axis} <= LAST_OF_THREE and first.start == 0 and rest.stop == TO_THE_END
    return [first.x, *rotation.input[1:]] if whole else []


def without_dequantization(model: Any, folder: Path, own: bool) -> Any:
    """A ModelProto with files in `folder` → one with the same numbers, for this provider. Changed weights are
    inside.

    own: whether IntegerProduct works here
    """
    graph = model.graph
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    products = {product.product.output[0]: product for product in quantized_products(graph)}
    nodes, weights = list[Any](), list[Any]()
    for node in graph.node:
        if product := products.get(node.output[0]):
            x, matrix = product.product.input[0], Matrix.read(product, tensors, folder)
            made = multiplied(x, node.output[0], matrix, product.bits, own)
        elif node.op_type == "DequantizeLinear" and node.input[0] not in tensors:
            made = _looked_up(node)
        else:
            made = [node], []
        nodes += made[0]
        weights += made[1]
    result = with_nodes(model, nodes, [*graph.initializer, *weights], MICROSOFT, 1)
    import_domain(result, DOMAIN, VERSION)
    keep_needed(result.graph)
    return result


def multiplied(x: str, out: str, matrix: Matrix, bits: int, own: bool) -> tuple[list[Any], list[Any]]:
    """The node of activations `x` times a matrix; its integers, uint8 [N, K / block size, bytes of a block], and
    their scales.

    own: whether IntegerProduct works here
    """
    from onnx import numpy_helper

    (n, k), block = matrix.q.shape, matrix.block_size
    q, scales = f"{out}/integers", f"{out}/scales"
    own = own and matrix.scales.dtype == np.float16 and block >= LEAST_BLOCK
    node = make_node(
        INTEGER_PRODUCT if own else MATMUL_NBITS,
        [x, q, scales],
        out,
        domain=DOMAIN if own else MICROSOFT,
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
        make_node("CastLike", [rows, scales], floats),
        make_node("Reshape", [floats, in_blocks], blocks),
        make_node("Unsqueeze", [scales, last], steps),
        make_node("Mul", [blocks, steps], scaled),
        make_node("Reshape", [scaled, flat], out),
    ]
    values = (
        numpy_helper.from_array(np.array(shape, np.int64), f"{out}/{name}") for name, shape in shapes.items()
    )
    return nodes, list(values)


# A recording replays what a run enqueued, with the same addresses. Some operators run on the host, which a replay
# would not do again. Others copy sizes from host memory that ONNX Runtime frees after the run: Concat and Split do
# so with parts of different sizes. So only operators are recorded whose kernels get all they need as arguments.
RECORDABLE = frozenset(
    (
        *(
            "Add",
            "Cast",
            "CastLike",
            "Constant",
            "Cos",
            "Div",
            "Exp",
            "Floor",
            "Identity",
            "Log",
            "Mul",
            "Neg",
        ),
        *("Pow", "Reciprocal", "Sigmoid", "Sin", "Softplus", "Sqrt", "Sub", "Tanh"),
        *("Gather", "Pad", "Reshape", "Slice", "Squeeze", "Unsqueeze"),
        *("Gemm", "MatMul", "MatMulNBits", "ReduceMean", "ReduceSum"),
    )
)
OUR_OPERATORS = frozenset((*(operator.name for operator in DENSE_OPERATORS), INTEGER_PRODUCT))


def unrecordable(model: Any) -> set[str]:
    """Operators of a ModelProto that keep it out of a recording."""
    return {
        node.op_type
        for node in model.graph.node
        if node.op_type not in (OUR_OPERATORS if node.domain == DOMAIN else RECORDABLE)
    }
