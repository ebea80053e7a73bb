"""Where inputs and outputs of independent implementations lie; the README there says where each set came from."""

from __future__ import annotations

from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "golden"
