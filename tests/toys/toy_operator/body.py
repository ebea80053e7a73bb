"""The toy operator's ONNX body."""

from __future__ import annotations

from typing import Any

from onnxscript import opset18 as op
from onnxscript import script
from onnxscript.values import Opset

h2o = Opset("h2o", 1)


@script(h2o, default_opset=op)
def ToyRowPowers(x: Any, power: int) -> Any:  # noqa: N802 - an operator's name
    exponent = op.Cast(op.Constant(value_int=power), to=1)
    axis = op.Constant(value_ints=[1])
    return op.ReduceSum(op.Pow(op.Abs(x), exponent), axis, keepdims=0)
