"""Parts that several bodies of operators have in common; they are inlined, see h2o_export.operators."""

# mypy reads the bodies as Python, where every value is a union of all tensor types.
# mypy: disable-error-code="type-var,arg-type,no-untyped-def,no-untyped-call,misc"

from __future__ import annotations

from onnxscript import opset18 as op
from onnxscript import script
from onnxscript.values import Opset

from h2o_runtime import operators as table

h2o = Opset(table.DOMAIN, table.VERSION)


@script(h2o, default_opset=op)
def SoftCap(scores, softcap: float):
    """softcap · tanh(scores / softcap) (Gemma 2; Google, 2024), or the scores themselves where softcap is 0."""
    cap = op.Constant(value_float=softcap)
    none = op.Constant(value_float=0.0)
    capped = op.Mul(op.Tanh(op.Div(scores, cap)), cap)
    y = op.Where(op.Greater(cap, none), capped, scores)
    return y


@script(h2o, default_opset=op)
def HeadScores(q, keys, scale: float, softcap: float):
    """q [n, Hq, d], keys float32 [m, Hkv, d] → the scores [Hkv, G · n, m]."""
    minus_one = op.Constant(value_ints=[-1])
    n = op.Shape(q, start=0, end=1)
    d = op.Shape(q, start=2, end=3)
    kv_heads = op.Shape(keys, start=1, end=2)
    split = op.Reshape(op.Cast(q, to=1), op.Concat(n, kv_heads, minus_one, d, axis=0))
    packed = op.Reshape(op.Transpose(split, perm=[1, 2, 0, 3]), op.Concat(kv_heads, minus_one, d, axis=0))
    scores = op.Mul(op.MatMul(packed, op.Transpose(keys, perm=[1, 2, 0])), op.Constant(value_float=scale))
    capped = h2o.SoftCap(scores, softcap=softcap)
    return capped


@script(h2o, default_opset=op)
def HeadOutputs(probabilities, values, q):
    """probabilities [Hkv, G, n, m] or [Hq, n, m], values float32 [m, Hkv, dv] → o [n, Hq, dv], of the type of q."""
    minus_one = op.Constant(value_ints=[-1])
    rows = op.Shape(values, start=0, end=1)
    kv_heads = op.Shape(values, start=1, end=2)
    dv = op.Shape(values, start=2, end=3)
    packed = op.Reshape(probabilities, op.Concat(kv_heads, minus_one, rows, axis=0))
    mixed = op.MatMul(packed, op.Transpose(values, perm=[1, 0, 2]))  # [Hkv, G * n, dv]
    split = op.Reshape(mixed, op.Concat(kv_heads, minus_one, op.Shape(q, start=0, end=1), dv, axis=0))
    o_shape = op.Concat(op.Shape(q, start=0, end=2), dv, axis=0)
    o = op.CastLike(op.Reshape(op.Transpose(split, perm=[2, 0, 1, 3]), o_shape), q)
    return o


@script(h2o, default_opset=op)
def HighestRising(ranks, places):
    """The numbers of the `places` highest ranks of each row of [H, m] → int32 [H, places], rising; -1 fills entries
    beyond m."""
    one = op.Constant(value_ints=[1])
    wanted = op.Reshape(places, one)
    count = op.Min(wanted, op.Shape(ranks, start=1, end=2))
    best, chosen = op.TopK(ranks, count, axis=1, largest=1, sorted=1)
    rising, order = op.TopK(op.Cast(chosen, to=1), count, axis=1, largest=0, sorted=1)
    listed = op.Cast(op.GatherElements(chosen, order, axis=1), to=6)
    absent = op.Concat(op.Shape(ranks, start=0, end=1), op.Sub(wanted, count), axis=0)
    filled = op.Expand(op.Cast(op.Constant(value_ints=[-1]), to=6), absent)
    numbers = op.Concat(listed, filled, axis=1)
    return numbers
