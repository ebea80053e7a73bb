"""A file that is either the one of before or the new one, whole."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from h2o_runtime.errors import OutputError


def replace_file(path: Path, text: str) -> None:
    """Write a whole file at once: whoever is ended meanwhile leaves the one of before. Raises OutputError."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise OutputError(f"{path}: cannot be written: {error.strerror}") from error
