"""The operators of dense graphs, which ONNX Runtime executes on a GPU with these kernels.

A bundle's graphs name some of them, with bodies of standard operators for all other backends. The backend inserts
ResidualNorm. Sizes are those of `h2o_runtime.operators`, and so is the rule for imports.
"""

from __future__ import annotations

from h2o_runtime.operator_spec import Attribute, Operator, float_tensor, model_tensor

_ROWS, _RESULT = model_tensor("x", "n K"), (model_tensor("y", "n K"),)
_WEIGHT, _EPSILON = model_tensor("weight", "K"), (Attribute("epsilon"),)
RMS_NORM = Operator(
    "RMSNorm",
    inputs=(_ROWS, _WEIGHT),
    outputs=_RESULT,
    attributes=_EPSILON,
    kernels=("cuda",),
    plugin=False,
)
RESIDUAL_NORM = Operator(  # RMSNorm of a sum, which is a result too
    "ResidualNorm",
    inputs=(_ROWS, model_tensor("residual", "n K"), _WEIGHT),
    outputs=(model_tensor("sum", "n K"), *_RESULT),
    attributes=_EPSILON,
    kernels=("cuda",),
    plugin=False,
)
_GATED = (model_tensor("gate", "n K"), model_tensor("up", "n K"))
SWIGLU, GEGLU = (
    Operator(name, inputs=_GATED, outputs=_RESULT, kernels=("cuda",), plugin=False)
    for name in ("SwiGLU", "GeGLU")
)
CLAMPED_SWIGLU = Operator(
    "ClampedSwiGLU",
    inputs=_GATED,
    outputs=_RESULT,
    attributes=(Attribute("limit"), Attribute("gain")),
    kernels=("cuda",),
    plugin=False,
)
ROTATION = Operator(
    "Rotation",
    inputs=(model_tensor("x", "n Hq d"), float_tensor("cos", "n r"), float_tensor("sin", "n r")),
    outputs=(model_tensor("y", "n Hq d"),),
    kernels=("cuda",),
    plugin=False,
)
DENSE_OPERATORS = (RMS_NORM, RESIDUAL_NORM, SWIGLU, CLAMPED_SWIGLU, GEGLU, ROTATION)
