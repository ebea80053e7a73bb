"""English documents that every development environment has, for measurements of quality.

    python -m bench.eval.texts -o texts

Four to choose settings by (texts/tune) and eight to report (texts/heldout), of at least 8,500 tokens each. All are
documentation: of Python's own manual, from docstrings of packages, and from texts beside them. Nothing is
imported and nothing fetched. Other versions of the packages have other texts; the sums that are printed tell.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distribution, version
from pathlib import Path
from pydoc_data.topics import topics

CHARACTERS = 60_000


@dataclass(frozen=True)
class Source:
    """path: of a distribution's file, or of a folder of modules; topics: of Python's manual instead."""

    name: str
    package: str = ""
    path: str = ""
    topics: tuple[str, ...] = ()

    def text(self) -> str:
        if self.topics:
            return "\n\n".join(str(topics[name]).strip() for name in self.topics)
        place = Path(str(distribution(self.package).locate_file(self.path)))
        if place.suffix not in ("", ".py"):
            return place.read_text(encoding="utf-8")
        files = [place] if place.is_file() else sorted(place.rglob("*.py"))
        return "\n\n".join(text for file in files for text in docstrings(file))

    @property
    def origin(self) -> str:
        if self.topics:
            return f"pydoc_data.topics: {', '.join(self.topics)}"
        return f"{self.package} {version(self.package)}: {self.path}"


TUNE = (
    Source("manual-compound", topics=("compound", "formatstrings", "typesmapping")),
    Source("numpy-functions", "numpy", "numpy/lib/_function_base_impl.py"),
    Source("matplotlib-axes", "matplotlib", "matplotlib/axes/_axes.py"),
    Source("networkx-approximation", "networkx", "networkx/algorithms/approximation"),
)
HELDOUT = (
    Source("manual-objects", topics=("specialnames",)),
    Source("manual-debugger", topics=("debugger", "assignment", "execmodel", "import", "try", "comparisons")),
    Source("sympy-distributions", "sympy", "sympy/stats/crv_types.py"),
    Source("numpy-masked", "numpy", "numpy/ma/core.py"),
    Source("click", "click", "click"),
    Source("pyparsing", "pyparsing", "pyparsing/core.py"),
    Source("pydantic", "pydantic", "pydantic"),
    Source("hypothesis", "hypothesis", "hypothesis/strategies"),
)


def docstrings(file: Path) -> Iterator[str]:
    """Of a module and of everything in it, in the order of the file."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [
        node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, kinds)
    ]
    for node in sorted(nodes, key=lambda node: getattr(node, "lineno", 0)):
        text = ast.get_docstring(node)
        if text and len(text) > 100:
            title = "" if isinstance(node, ast.Module) else f"{node.name}\n\n"
            yield title + text


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the documents that quality is measured on.")
    parser.add_argument("-o", "--output", type=Path, required=True)
    output = parser.parse_args().output
    for kind, sources in (("tune", TUNE), ("heldout", HELDOUT)):
        folder = output / kind
        folder.mkdir(parents=True, exist_ok=True)
        for source in sources:
            text = source.text()[:CHARACTERS]
            (folder / f"{source.name}.txt").write_text(text, encoding="utf-8")
            digest = hashlib.sha256(text.encode()).hexdigest()[:12]
            print(f"{kind}/{source.name}.txt  {len(text):>6,} characters  {digest}  {source.origin}")


if __name__ == "__main__":
    main()
