"""The report of one GPU run, as JSON for machines and Markdown for people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Row = dict[str, Any]

# (table, column, least value) of the goals for a GPU run; a layer's goals depend on its length.
GOALS = [
    ("phase1", "plain_of_flash", 0.70),
    ("phase1", "scored_of_flash", 0.45),
    ("phase2", "gather_of_copy", 0.50),
    ("phase2", "fused_of_limit", 0.60),
]
LAYER_GOALS = {16384: 5.0, 32768: 10.0}


def missed_goals(timings: Row) -> list[str]:
    missed = []
    for table, column, least in GOALS:
        for row in timings[table]:
            if row[column] < least:
                missed.append(
                    f"{column} at head size {row['head_size']}: {row[column]:.2f}, wanted {least:.2f}"
                )
    for row in timings["layer"]:
        least = LAYER_GOALS.get(row["n"], 0.0)
        if row["speedup"] < least:
            missed.append(
                f"N = {row['n']}, head size {row['head_size']}: {row['speedup']:.1f}x, wanted {least:.0f}x"
            )
    if not timings["repeatable"]:
        missed.append("two runs of the same prefill differ")
    return missed


def _table(rows: list[Row]) -> str:
    def cell(value: Any) -> str:
        return f"{value:.3g}" if isinstance(value, float) else str(value)

    head = list(rows[0])
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(cell(row[name]) for name in head) + " |" for row in rows]
    return "\n".join(lines)


def markdown(report: Row) -> str:
    parts = ["# GPU check", _table([report["machine"]]), "## Checks", _table(report["checks"])]
    timings = report.get("timings")
    if timings is None:
        parts.append(f"No timings: {report['no_timings']}")
    else:
        missed = missed_goals(timings)
        parts.append("## Goals\n\n" + ("\n".join(f"- missed: {line}" for line in missed) or "All met."))
        parts.append("## Timings\n\nMedians of CUDA graph replays. " + json.dumps(timings["setting"]))
        for name in ("phase1", "phase2", "layer", "decode"):
            parts += [f"### {name}", _table(timings[name])]
        parts += ["### ceilings", _table([timings["ceilings"]])]
    return "\n\n".join(parts) + "\n"


def write(report: Row, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    (folder / "report.md").write_text(markdown(report))
