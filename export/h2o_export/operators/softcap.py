"""What bodies of operators do to scores before they mask them; see h2o_export.operators."""

# mypy takes the bodies for Python and every value for a union of all tensor types.
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
