"""The table of operators with one more row. It is run as a file, as the table is."""

from __future__ import annotations

import runpy
from pathlib import Path

REPO = Path(__file__).resolve().parents[3]
_table = runpy.run_path(str(REPO / "runtime" / "h2o_runtime" / "operators.py"))
_tensor, _attribute, _operator = (_table[name] for name in ("TensorArgument", "Attribute", "Operator"))

KEYS, VALUES, LENGTH = _table["KEYS"], _table["VALUES"], _table["LENGTH"]
TOY_ROW_POWERS = _operator(  # y [n] = the sums of a row's magnitudes to a power
    "ToyRowPowers",
    inputs=(_tensor("x", "float32", ("n", "d")),),
    outputs=(_tensor("y", "float32", ("n",)),),
    attributes=(_attribute("power", 1),),
)
OPERATORS = (*_table["OPERATORS"], TOY_ROW_POWERS)
RUNTIME_OPERATORS, DENSE_OPERATORS = _table["RUNTIME_OPERATORS"], _table["DENSE_OPERATORS"]
