"""Draw docs/figures/time_against_length.svg from the result file that README.md names.

python -m docs.figures.time_against_length
"""

from __future__ import annotations

import csv
from pathlib import Path

from examples.time_chart import Curve, svg

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results" / "smollm2-int8" / "prefill-lengths.csv"
PICTURE = Path(__file__).with_suffix(".svg")
NAMES = {"full": "full attention", "h2o": "sparse prefill"}


def draw() -> str:
    with RESULTS.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    curves = [
        Curve(title, {int(row["length"]): float(row["median_s"]) for row in rows if row["name"] == name})
        for name, title in NAMES.items()
    ]
    return svg(curves, "SmolLM2-135M, int8, 2 cores of an AMD EPYC (Zen 4): time to first token, s")


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
