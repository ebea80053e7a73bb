"""The functions of dense graphs besides matrix products, made of standard operators.

Graphs name them, all but ResidualNorm, so that a runtime with a kernel for one of them can find it; other
runtimes execute the bodies. Arithmetic is float32, whatever x is. Names must differ from standard operators:
TensorRT's parser looks at the name before the domain.
"""

# mypy reads the bodies as Python, where every value is a union of all tensor types.
# mypy: disable-error-code="type-var,arg-type,no-untyped-def,no-untyped-call,misc"

from __future__ import annotations

from onnxscript import opset18 as op
from onnxscript import script
from onnxscript.values import Opset

from h2o_runtime import operators as table

h2o = Opset(table.DOMAIN, table.VERSION)


@script(h2o, default_opset=op)
def RMSNorm(x, weight, epsilon: float):
    """Root-mean-square norm (Zhang and Sennrich, 2019). x [..., K], weight [K] → [..., K]."""
    wide = op.Cast(x, to=1)
    squares = op.Pow(wide, op.Constant(value_float=2.0))
    mean = op.ReduceMean(squares, op.Constant(value_ints=[-1]))
    root = op.Sqrt(op.Add(mean, op.Constant(value_float=epsilon)))
    y = op.Mul(op.CastLike(op.Div(wide, root), x), weight)
    return y


@script(h2o, default_opset=op)
def ResidualNorm(x, residual, weight, epsilon: float):
    """RMSNorm of a sum, as a runtime's kernel computes both. x, residual [n, K], weight [K] → sum, y [n, K]."""
    sum = op.Add(x, residual)
    wide = op.Cast(sum, to=1)
    squares = op.Pow(wide, op.Constant(value_float=2.0))
    mean = op.ReduceMean(squares, op.Constant(value_ints=[-1]))
    root = op.Sqrt(op.Add(mean, op.Constant(value_float=epsilon)))
    y = op.Mul(op.CastLike(op.Div(wide, root), sum), weight)
    return sum, y


@script(h2o, default_opset=op)
def SwiGLU(gate, up):
    """The gate of an MLP (Shazeer, 2020). gate, up [n, K] → silu(gate) · up."""
    y = op.Mul(op.Mul(gate, op.Sigmoid(gate)), up)
    return y


@script(h2o, default_opset=op)
def ClampedSwiGLU(gate, up, limit: float, gain: float):
    """gpt-oss's gate (OpenAI, 2025). gate, up [n, K] → g · sigmoid(gain · g) · (u + 1), with g the gate up to
    `limit` and u the other one between -limit and limit."""
    most = op.Constant(value_float=limit)
    g = op.Min(op.Cast(gate, to=1), most)
    u = op.Max(op.Min(op.Cast(up, to=1), most), op.Neg(most))
    opened = op.Mul(g, op.Sigmoid(op.Mul(g, op.Constant(value_float=gain))))
    y = op.CastLike(op.Mul(opened, op.Add(u, op.Constant(value_float=1.0))), up)
    return y


@script(h2o, default_opset=op)
def GeGLU(gate, up):
    """The same with GELU in its tanh approximation (Hendrycks and Gimpel, 2016).

    gate, up [n, K] → gelu(gate) · up; (1 + tanh(z)) / 2 is sigmoid(2z).
    """
    wide = op.Cast(gate, to=1)
    twice = op.Constant(value_float=1.5957691216057308)  # 2 √(2 / π)
    cubic = op.Constant(value_float=0.07135481282052469)  # 0.044715 times that
    z = op.Mul(wide, op.Add(op.Mul(op.Mul(wide, wide), cubic), twice))
    y = op.Mul(op.CastLike(op.Mul(wide, op.Sigmoid(z)), up), up)
    return y


@script(h2o, default_opset=op)
def Rotation(x, cos, sin):
    """RoPE on halves (Su et al., 2021; the layout of Hugging Face checkpoints).

    x [n, H, d]; cos, sin float32 [n, d / 2] → [n, H, d].
    """
    a, b = op.Split(op.Cast(x, to=1), axis=-1, num_outputs=2)  # [n, H, d / 2]
    heads = op.Constant(value_ints=[1])
    c = op.Unsqueeze(cos, heads)  # [n, 1, d / 2]
    s = op.Unsqueeze(sin, heads)
    first = op.Sub(op.Mul(a, c), op.Mul(b, s))
    second = op.Add(op.Mul(b, c), op.Mul(a, s))
    y = op.CastLike(op.Concat(first, second, axis=-1), x)
    return y
