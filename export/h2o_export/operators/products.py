"""The operators of dense graphs, as functions of standard operators; see h2o_export.operators."""

# mypy reads the bodies as Python, where every value is a union of all tensor types.
# mypy: disable-error-code="type-var,arg-type,no-untyped-def,no-untyped-call,misc"

from __future__ import annotations

from onnxscript import opset18 as op
from onnxscript import script
from onnxscript.values import Opset

from h2o_runtime import operators as table

h2o = Opset(table.DOMAIN, table.VERSION)


@script(h2o, default_opset=op)
def BlockProduct(x, weights, scales):
    """Rows times a matrix of 4-bit integers; each block of 32 inputs of an output has one scale.

    x [n, K]; weights int32 [Kb, N, 4]; scales [Kb, N] → y [n, N], N a multiple of 8. Each four bits of a word
    are an integer plus 8. Word t of an output's block holds, from its lowest bits up, inputs 8t, 8t + 2, 8t +
    4, 8t + 6, 8t + 1, 8t + 3 and so on. For each four outputs the 4 x 4 words are transposed: word j of
    output t is stored where word t of output j would be.
    """
    minus_one = op.Constant(value_ints=[-1])
    four = op.Constant(value_ints=[4])
    outputs = op.Shape(weights, start=1, end=2)
    blocks = op.Shape(weights, start=0, end=1)
    words = op.Reshape(op.Cast(weights, to=7), op.Concat(blocks, minus_one, four, four, axis=0))
    words = op.Transpose(words, perm=[0, 2, 1, 3])  # [Kb, t, N / 4, j]
    words = op.Reshape(words, op.Concat(blocks, four, op.Constant(value_ints=[1]), outputs, axis=0))
    # Powers of 16: the bit offsets of inputs 8t, 8t + 1, 8t + 2, …
    place = op.Constant(value_ints=[1, 65536, 16, 1048576, 256, 16777216, 4096, 268435456])
    place = op.Reshape(place, op.Constant(value_ints=[8, 1]))
    # Mod has the sign of its divisor, so the rest is a multiple of it for words of either sign.
    shifted = op.Div(op.Sub(words, op.Mod(words, place)), place)  # [Kb, t, 8, N]
    integers = op.Sub(op.Mod(shifted, op.Constant(value_int=16)), op.Constant(value_int=8))
    by_input = op.Reshape(integers, op.Concat(blocks, op.Constant(value_ints=[32]), outputs, axis=0))
    floats = op.Mul(op.CastLike(by_input, scales), op.Unsqueeze(scales, op.Constant(value_ints=[1])))
    y = op.MatMul(x, op.Reshape(floats, op.Concat(minus_one, outputs, axis=0)))
    return y
