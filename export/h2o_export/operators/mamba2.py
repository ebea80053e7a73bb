"""The operator of Mamba-2's layers, as a function of standard operators; see h2o_export.operators."""

# mypy takes the bodies for Python and every value for a union of all tensor types.
# mypy: disable-error-code="type-var,arg-type,no-untyped-def,no-untyped-call,misc"

from __future__ import annotations

from onnxscript import graph, script
from onnxscript import opset18 as op
from onnxscript.values import Opset

from h2o_runtime import operators as table

h2o = Opset(table.DOMAIN, table.VERSION)


@script(h2o, default_opset=op)
def Mamba2(x, b, c, decay, step, skip, state):
    """Mamba-2 (Dao and Gu, 2024, "Transformers are SSMs"), one token after the other.

    x [n, Hq, dv], b and c [n, Hkv, d]; decay, step and skip float32 [n, Hq]; state S float32 [Hq, d, dv] before the
    tokens. Of each head S = exp(decay) S + b (step x)^T, and o = S^T c + skip x. Hq / Hkv heads share b and c.
    → o [n, Hq, dv], state_next [Hq, d, dv] behind them.
    """
    two = op.Constant(value_ints=[2])
    kv_heads = op.Shape(b, start=1, end=2)
    heads = op.Shape(x, start=1, end=2)
    n = op.Shape(x, start=0, end=1)
    d = op.Shape(b, start=2, end=3)
    wide = op.Concat(n, kv_heads, op.Div(heads, kv_heads), d, axis=0)
    whole = op.Concat(n, heads, d, axis=0)
    rows = op.Reshape(op.Expand(op.Unsqueeze(op.Cast(b, to=1), two), wide), whole)  # [n, Hq, d]
    readers = op.Reshape(op.Expand(op.Unsqueeze(op.Cast(c, to=1), two), wide), whole)
    given = op.Cast(x, to=1)
    added = op.Mul(given, op.Unsqueeze(step, two))
    factor = op.Exp(decay)

    @graph()
    def pass_on(before, row, reader, value, keep):
        """One token: [Hq, d, dv], [Hq, d], [Hq, d], [Hq, dv], [Hq]."""
        last = op.Constant(value_ints=[-1])
        middle = op.Constant(value_ints=[1])
        left = op.Mul(before, op.Unsqueeze(op.Unsqueeze(keep, last), last))
        after = op.Add(left, op.Mul(op.Unsqueeze(row, last), op.Unsqueeze(value, middle)))
        out = op.ReduceSum(op.Mul(after, op.Unsqueeze(reader, last)), middle, keepdims=0)
        return after, out

    behind, read = op.Scan(state, rows, readers, added, factor, body=pass_on, num_scan_inputs=4)
    o = op.CastLike(op.Add(read, op.Mul(given, op.Unsqueeze(skip, two))), x)
    state_next = op.Identity(behind)
    return o, state_next
