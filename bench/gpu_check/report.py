"""The report of one GPU run, as JSON and Markdown, from the results so far."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Tables = dict[str, list[Row]]

# (table, column, least value). Rates are shares of a long non-causal FlashAttention-2 of the same head size in the
# same run: both use mma.sync, which reaches about two thirds of what cuBLAS does with warp-group products on SM90.
# Below 1 by construction: tiles that cross the diagonal (0.89 of them are seen at chunks of 1,024), column sums
# (half of attention's products once more), and launches of some 20 µs (phase 2).
GOALS = [
    ("phase1", "plain_of_flash", 0.65),
    ("phase1", "scored_of_flash", 0.40),
    ("phase2", "fused_of_flash", 0.50),
    ("phase2", "gather_of_copy", 0.50),
    ("layer", "h2o_of_flash", 0.45),
    ("layer", "window_of_flash", 0.45),
    ("decode", "of_copy", 0.60),
    ("decode", "step_of_copy", 0.60),
]
STEP_ERROR = 2e-3  # of float16 outputs, of the largest
LONG = 16384  # the goals apply from this length on: shorter prompts are mostly launches


def append(rows: Path, table: str, row: Row) -> None:
    """At once: a process that is stopped keeps what it has measured."""
    with rows.open("a") as file:
        file.write(json.dumps({"table": table, **row}) + "\n")


def tables(folder: Path) -> Tables:
    """Rows by table as measured, with the ratios that the other rows allow."""
    found: Tables = {}
    file = folder / "rows.jsonl"
    for line in file.read_text().splitlines() if file.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:  # of a process that was killed while writing
            continue
        found.setdefault(row.pop("table"), []).append(row)
    with_ratios(found)
    return found


def with_ratios(found: Tables) -> None:
    rate = {row["head_size"]: row["tflop_s"] for row in found.get("flash", ())}
    copy = next((row["copy_gb_s"] for row in found.get("ceilings", ())), None)
    for name, column in (("plain", "phase1"), ("scored", "phase1"), ("fused", "phase2"), ("h2o", "layer"),
                         ("window", "layer")):  # fmt: skip
        for row in found.get(column, ()):
            if row.get("head_size") in rate and f"{name}_tflop_s" in row:
                row[f"{name}_of_flash"] = row[f"{name}_tflop_s"] / rate[row["head_size"]]
    for row in found.get("phase2", ()) if copy else ():
        row["gather_of_copy"] = row["gather_gb_s"] / copy
    for row in found.get("decode", ()) if copy else ():
        row["of_copy"] = row["bytes"] / row["ms"] / 1e6 / copy
        row["step_of_copy"] = row["bytes"] / row["step_ms"] / 1e6 / copy


def missed_goals(found: Tables) -> list[str]:
    missed = []
    for table, column, least in GOALS:
        for row in found.get(table, ()):
            if column not in row or row.get("n", LONG) < LONG:
                continue
            if row[column] < least:
                where = ", ".join(f"{key} {row[key]}" for key in ("head_size", "n", "length") if key in row)
                missed.append(f"{column} at {where}: {row[column]:.2f}, wanted {least:.2f}")
    if any(not row["same"] for row in found.get("repeatable", ())):
        missed.append("two runs of the same prefill differ")
    for row in found.get("step rows", ()):
        if not row.get("same_bits", True):
            missed.append(f"a step of {row['rows']} rows differs from steps of one")
        if (row.get("error") or 0) > STEP_ERROR:
            missed.append(f"error of a step at head_size {row['head_size']}: {row['error']:.2g}")
    return missed


def unmeasured(found: Tables) -> list[str]:
    return [
        f"{table}.{column}"
        for table, column, _ in GOALS
        if not any(column in row for row in found.get(table, ()))
    ]


def _table(rows: list[Row]) -> str:
    def cell(value: Any) -> str:
        text = f"{value:.3g}" if isinstance(value, float) else str(value)
        return text.replace("|", "\\|").replace("\n", " ")

    head = list(dict.fromkeys(name for row in rows for name in row))
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(cell(row.get(name, "")) for name in head) + " |" for row in rows]
    return "\n".join(lines)


def markdown(machine: Row, checks: list[Row], found: Tables) -> str:
    missed, missing = missed_goals(found), unmeasured(found)
    goals = [f"- missed: {line}" for line in missed] + [f"- not measured: {name}" for name in missing]
    parts = ["# GPU check", _table([machine]), "## Checks", _table(checks)]
    parts += ["## Goals", "\n".join(goals) or "All met."]
    if found:
        parts.append(
            "## Timings\n\nMedians of CUDA graph replays; `policies` and `prefill` by the host's clock. "
            "Rates are of float16."
        )
    for name, rows in found.items():
        parts += [f"### {name}", _table(rows)]
    return "\n\n".join(parts) + "\n"


def write(machine: Row, checks: list[Row], folder: Path) -> None:
    """report.json and report.md, of the checks so far and of what rows.jsonl holds."""
    found = tables(folder)
    whole = {"machine": machine, "checks": checks, "tables": found, "missed": missed_goals(found)}
    (folder / "report.json").write_text(json.dumps(whole, indent=2) + "\n")
    (folder / "report.md").write_text(markdown(machine, checks, found))
