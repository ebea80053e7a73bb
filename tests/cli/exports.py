"""What tests of h2o-export share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

NAME = "llama-g2-d64-llama3"  # a checkpoint of two layers, tied


def files(folder: Path) -> dict[str, int]:
    """Sizes by path, of all below a folder."""
    return {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file()
    }


def strict_json(text: str | bytes) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)
