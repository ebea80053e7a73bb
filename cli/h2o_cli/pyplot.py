"""The library that draws pictures, imported only when there is one to draw."""

from __future__ import annotations

import importlib
from typing import Any

from h2o_runtime.errors import BackendError


def import_pyplot() -> Any:
    """matplotlib without a display. Raises BackendError if it is not installed."""
    try:
        matplotlib: Any = importlib.import_module("matplotlib")
    except ImportError as error:
        raise BackendError(
            f"pictures need matplotlib ({error}): pip install 'h2o-edge[bench]', or in a checkout "
            "pip install '.[bench]'"
        ) from None
    matplotlib.use("Agg")
    return importlib.import_module("matplotlib.pyplot")
