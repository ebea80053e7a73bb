"""English documents that every development environment has, for measurements of quality.

    python -m bench.eval.texts -o texts

Four to choose settings by (texts/tune) and eight to report (texts/heldout), of at least 8,500 tokens each.
All are documentation: of Python's own manual, from docstrings of packages, and from texts beside them.
Nothing is imported or fetched. Other versions of the packages have other texts; the printed hashes show it.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

from h2o_cli.eval.suite import Source

CHARACTERS = 60_000


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
