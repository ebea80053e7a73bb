"""Writes README.md's table of supported features, from the registries.

python -m tools.supported      # puts it between the README's markers
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from h2o_export.architecture.families import FAMILIES
from h2o_export.checkpoints.quantized.checkpoint import METHODS
from h2o_export.formats import FLOATS, FORMATS
from h2o_runtime.caches import CACHES
from h2o_runtime.policies.decode import DECODE
from h2o_runtime.policies.prefill import PREFILL
from h2o_runtime.policies.prefill.h2o import SCORES

README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- by python -m tools.supported -->", "<!-- end -->"


def rows() -> dict[str, tuple[Iterable[str], str]]:
    """A row's topic → its names, the default first, and the page about it."""
    return {
        "model types": (FAMILIES, "export.md"),
        "checkpoints": (("safetensors", "gguf", *METHODS), "export.md"),
        "weights": (FORMATS, "weights.md"),
        "other tensors": (FLOATS, "weights.md"),
        "prefill (`--prefill`)": (PREFILL.names, "policies.md"),
        "score rules of h2o (`score=`)": (SCORES.names, "algorithm.md"),
        "decode (`--decode`)": (DECODE.names, "policies.md"),
        "cache (`--cache`)": (CACHES.names, "caches.md"),
    }


def table() -> str:
    lines = ["| | |", "|---|---|"]
    for title, (names, page) in rows().items():
        listed = ", ".join(f"`{name}`" for name in names)
        lines.append(f"| [{title}](docs/{page}) | {listed} |")
    return "\n".join(lines)


def main() -> None:
    text = README.read_text(encoding="utf-8")
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    README.write_text(f"{text[:begin]}\n\n{table()}\n\n{text[end:]}", encoding="utf-8")


if __name__ == "__main__":
    main()
