"""Which dense graphs a recorded step may contain, when ONNX Runtime's CUDA provider runs them.

A recording replays what a run enqueued, with the same addresses. Some operators run on the host, which a replay
would not do again. Others copy sizes from host memory that ONNX Runtime frees after the run: a replay would read
freed memory. So only operators are recorded whose kernels get all they need as arguments.
"""

from __future__ import annotations

from typing import Any

from h2o_runtime.dense_graphs.cuda_provider import INTEGER_PRODUCT
from h2o_runtime.dense_operators import DENSE_OPERATORS
from h2o_runtime.operators import DOMAIN

# Concat and Split are not among them: with parts of different sizes they copy from the host.
OPERATORS = frozenset(
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
        if node.op_type not in (OUR_OPERATORS if node.domain == DOMAIN else OPERATORS)
    }
