"""Inputs and outputs of independent implementations, where a checkout has them in shared/golden."""

from __future__ import annotations

from pathlib import Path

import pytest

GOLDEN = Path(__file__).resolve().parents[1] / "shared" / "golden"


def golden(name: str) -> Path:
    """A folder of them; skips the test where there is none."""
    if not (GOLDEN / name).is_dir():
        pytest.skip(f"no shared/golden/{name}")
    return GOLDEN / name
