"""The operator of layers that keep a state, as a function of standard operators; see h2o_export.operators."""

# mypy takes the bodies for Python and every value for a union of all tensor types.
# mypy: disable-error-code="type-var,arg-type,no-untyped-def,no-untyped-call,misc"

from __future__ import annotations

from onnxscript import graph, script
from onnxscript import opset18 as op
from onnxscript.values import Opset

from h2o_runtime import operators as table

h2o = Opset(table.DOMAIN, table.VERSION)


@script(h2o, default_opset=op)
def GatedDelta(q, k, v, decay, beta, state, scale: float):
    """The gated delta rule (Yang et al., 2024, "Gated Delta Networks"), one token after the other.

    q [n, Hq, d], k [n, Hkv, d], v [n, Hq, dv]; decay, beta float32 [n, Hq]; state S float32 [Hq, d, dv] before
    the tokens. Of each head S = exp(decay) S; then S = S + k (beta (v - S^T k))^T, and o = scale S^T q. A key is
    that of Hq / Hkv heads. → o [n, Hq, dv], state_next [Hq, d, dv] behind them.
    """
    two = op.Constant(value_ints=[2])
    kv_heads = op.Shape(k, start=1, end=2)
    group = op.Div(op.Shape(q, start=1, end=2), kv_heads)
    n = op.Shape(q, start=0, end=1)
    d = op.Shape(q, start=2, end=3)
    wide = op.Concat(n, kv_heads, group, d, axis=0)
    keys = op.Reshape(op.Expand(op.Unsqueeze(op.Cast(k, to=1), two), wide), op.Shape(q))  # [n, Hq, d]
    queries = op.Mul(op.Cast(q, to=1), op.Constant(value_float=scale))
    values = op.Cast(v, to=1)
    factor = op.Exp(decay)

    @graph()
    def step(before, query, key, value, keep, rate):
        """One token: [Hq, d, dv], [Hq, d], [Hq, d], [Hq, dv], [Hq], [Hq]."""
        last = op.Constant(value_ints=[-1])
        middle = op.Constant(value_ints=[1])
        left = op.Mul(before, op.Unsqueeze(op.Unsqueeze(keep, last), last))
        column = op.Unsqueeze(key, last)  # [Hq, d, 1]
        known = op.ReduceSum(op.Mul(left, column), middle, keepdims=0)  # [Hq, dv]
        delta = op.Mul(op.Sub(value, known), op.Unsqueeze(rate, last))
        after = op.Add(left, op.Mul(column, op.Unsqueeze(delta, middle)))
        out = op.ReduceSum(op.Mul(after, op.Unsqueeze(query, last)), middle, keepdims=0)
        return after, out

    behind, rows = op.Scan(state, queries, keys, values, factor, beta, body=step, num_scan_inputs=5)
    o = op.CastLike(rows, q)
    state_next = op.Identity(behind)
    return o, state_next
