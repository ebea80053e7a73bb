"""A trial of IntegerProduct (plugins/ort/integer_product.cpp), before graphs on a GPU depend on it.

It has ONNX Runtime make and call a MatMulNBits outside of any graph. Nothing else here does that, and graphs with
MatMulNBits itself run without it. So one small product of each width is compared with NumPy's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from h2o_runtime.dense_graphs.cuda_provider import multiplied
from h2o_runtime.dense_graphs.matrices import Matrix
from h2o_runtime.errors import BackendError
from h2o_runtime.operators import DOMAIN, VERSION

WIDTHS: tuple[Literal[4, 8], ...] = (4, 8)
ROWS = (1, 2, 16, 17)  # MatMulNBits, our kernel for up to 8 and up to 16 rows, MatMulNBits
# Sizes for which MatMulNBits has all its kernels, those of rearranged weights among them.
INPUTS, OUTPUTS, BLOCK = 256, 64, 32


def shortcoming(open_model: Callable[[bytes], Any]) -> str:
    """Why IntegerProduct cannot be used; empty if it can.

    open_model: makes ONNX Runtime's session of a serialised model

    Raises BackendError where ONNX Runtime cannot use the GPU at all.
    """
    numbers = np.random.default_rng(0)
    matrices = {bits: _matrix(numbers) for bits in WIDTHS}
    try:
        session = open_model(_model(matrices))
        for rows in ROWS:
            x = numbers.integers(-1, 2, (rows, INPUTS)).astype(np.float16)
            for bits, y in zip(WIDTHS, session.run(None, {"x": x}), strict=True):
                if not np.array_equal(y, x.astype(np.float64) @ _floats(matrices[bits]).T):
                    return f"{rows} rows times integers of {bits} bits are wrong"
    except BackendError:
        raise
    except Exception as error:  # ONNX Runtime's exceptions have no common base class
        return str(error).strip().partition("\n")[0] or type(error).__name__
    return ""


def _matrix(numbers: np.random.Generator) -> Matrix:
    """Of numbers whose sums float16 holds exactly, in any order."""
    q = numbers.integers(-8, 8, (OUTPUTS, INPUTS)).astype(np.int8)
    return Matrix(q, numbers.choice([0.5, 1.0], (OUTPUTS, INPUTS // BLOCK)).astype(np.float16))


def _floats(matrix: Matrix) -> Any:
    return matrix.q * np.repeat(matrix.scales.astype(np.float64), BLOCK, axis=1)


def _model(matrices: dict[Literal[4, 8], Matrix]) -> bytes:
    from onnx import TensorProto, helper

    nodes, weights = list[Any](), list[Any]()
    for bits, matrix in matrices.items():
        node, constants = multiplied("x", f"y{bits}", matrix, bits, own=True)
        nodes += node
        weights += constants
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT16, ["rows", INPUTS])
    results = [
        helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT16, ["rows", OUTPUTS])
        for node in nodes
    ]
    graph = helper.make_graph(nodes, "trial", [x], results, weights)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, VERSION)]
    model: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    return model
