"""How a step ends: its rows as lines of JSON, and an exit code."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from h2o_plugins import NativeKernelsMissing
from h2o_runtime.errors import H2OError

Row = dict[str, Any]
NOT_HERE = 77  # exit code of a step that cannot run on this machine; its last line says why


def tell(rows: Callable[[], Iterable[Row]]) -> int:
    """Print each row at once. → 0; 1 if what a row compares is not the same; NOT_HERE."""
    good = True
    try:
        for row in rows():
            print(json.dumps(row), flush=True)
            good &= row.get("same", True)
    except (NativeKernelsMissing, H2OError) as error:
        print(error, flush=True)
        return NOT_HERE
    return int(not good)
