"""The results as an image of four plots."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

from h2o_cli.bench.report import PHASES, Results
from h2o_cli.pyplot import import_pyplot
from h2o_runtime.files.outputs import replace_file
from h2o_runtime.policies.prefill import PREFILL

Row = dict[str, Any]
OWN_COLOURS = (
    "#c0392b",
    "#2c3e50",
    "#d35400",
    "#1f618d",
    "#7d3c98",
)  # of policies, in the registry's order
PEER_COLOURS = ("#2980b9", "#27ae60", "#8e44ad", "#d68910", "#16a085", "#7f8c8d")
PHASE_COLOURS = ("#7f8c8d", "#c0392b", "#e67e22", "#f1c40f", "#2980b9", "#8e44ad", "#16a085")
TITLES = {
    "prefill": ("time to first token, s", "prompt tokens a second"),
    "decode": ("time a token, s", "tokens a second"),
    "attention": ("attention of one layer, s", "tokens a second"),
}


def draw(results: Results, path: Path) -> None:
    """Write a PNG. Raises BackendError without matplotlib, OutputError if it cannot be written."""
    plot = import_pyplot()
    figure, axes = plot.subplots(2, 2, figsize=(12, 9), layout="constrained")
    best = best_rows(results)
    _curves(axes[0][0], best, lambda row: row["median_s"], TITLES[results.mode][0], spread=True, floor=True)
    if any(row["perplexity_change"] is not None for row in best):
        _losses(axes[0][1], best)
    else:
        _curves(axes[0][1], best, lambda row: row["tokens_per_s"], TITLES[results.mode][1])
    if results.mode == "decode":
        _curves(axes[1][0], best, lambda row: row["floor_share"], "share of the measured bandwidth")
        axes[1][0].set_yscale("linear")
        axes[1][0].set_ylim(0, 1.05)
    else:
        _phases(axes[1][0], best, results.lead)
    _curves(axes[1][1], best, lambda row: row["peak_bytes"] / 2**20, "peak memory, MiB")
    rates, machine = results.rates, results.machine
    figure.suptitle(
        f"{results.model}, {best[0]['precision']}, {best[0]['threads']} threads, {machine['cpu']}\n"
        f"measured: {rates.in_words()}"
    )
    drawn = BytesIO()
    figure.savefig(drawn, dpi=110)
    plot.close(figure)
    replace_file(path, drawn.getvalue())


def best_rows(results: Results) -> list[Row]:
    """The fastest setting of a peer at each length."""
    best: dict[tuple[str, int], Row] = {}
    for row in results.rows:
        key = (row["name"], row["length"])
        if key not in best or row["median_s"] < best[key]["median_s"]:
            best[key] = row
    return sorted(best.values(), key=lambda row: row["length"])


def _curves(
    axes: Any,
    rows: list[Row],
    value: Callable[[Row], float],
    title: str,
    spread: bool = False,
    floor: bool = False,
) -> None:
    names = list(dict.fromkeys(row["name"] for row in rows))
    peers = iter(PEER_COLOURS * len(names))
    ours = _colours(rows)
    for name in names:
        points = [row for row in rows if row["name"] == name]
        lengths = [row["length"] for row in points]
        colour = ours.get(name) or next(peers)
        axes.plot(lengths, [value(row) for row in points], "o-", color=colour, label=name, markersize=4)
        if spread:
            low, high = [row["q1_s"] for row in points], [row["q3_s"] for row in points]
            axes.fill_between(lengths, low, high, color=colour, alpha=0.2, linewidth=0)
        if floor and name in ours:
            axes.plot(lengths, [row["floor_s"] for row in points], "--", color=colour, label=f"{name}: floor")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = sorted({row["length"] for row in rows})
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.set_xlabel("tokens")
    axes.set_title(title)
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(fontsize=8)


def _losses(axes: Any, rows: list[Row]) -> None:
    """The loss of sparse attention against its time; points are labelled with the length."""
    lossy = [row for row in rows if row["perplexity_change"] is not None]
    peers = iter(PEER_COLOURS * len(lossy))
    ours = _colours(rows)
    for name in dict.fromkeys(row["name"] for row in lossy):
        points = [row for row in lossy if row["name"] == name]
        times = [row["median_s"] for row in points]
        losses = [100 * row["perplexity_change"] for row in points]
        axes.plot(times, losses, "o-", color=ours.get(name) or next(peers), label=name, markersize=4)
        for row, time, loss in zip(points, times, losses, strict=True):
            axes.annotate(
                f"{row['length']:,}", (time, loss), xytext=(4, 4), textcoords="offset points", fontsize=7
            )
    axes.axhline(0.0, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=1.0)
    axes.set_xlabel("time to first token, s")
    axes.set_title("perplexity after the prompt against exact attention, %")
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(fontsize=8)


def _colours(rows: list[Row]) -> dict[str, str]:
    """Of our policies, by name; the same in every picture."""
    colours = dict(zip(PREFILL.names, itertools.cycle(OWN_COLOURS), strict=False))
    names = (row["name"] for row in rows)
    return {name: colours[name.split()[0]] for name in names if name.split()[0] in colours}


def _phases(axes: Any, rows: list[Row], lead: str) -> None:
    """Where the leading policy's time goes, and how much of it is the floor."""
    points = [row for row in rows if row["name"] == lead]
    used = [phase for phase in PHASES if any(row[f"{phase}_s"] for row in points)]
    places = range(len(points))
    bottom = [0.0] * len(points)
    for phase, colour in zip(used, itertools.cycle(PHASE_COLOURS), strict=False):
        share = [(row[f"{phase}_s"] or 0.0) / row["median_s"] for row in points]
        axes.bar(places, share, bottom=bottom, color=colour, label=phase)
        bottom = [below + height for below, height in zip(bottom, share, strict=True)]
    axes.plot(places, [row["floor_share"] for row in points], "k_", markersize=30, label="floor")
    axes.set_xticks(places, [f"{row['length']:,}" for row in points])
    axes.set_ylim(0, 1.15)
    axes.set_title(f"{lead}: share of the time")
    axes.set_xlabel("tokens")
    axes.legend(fontsize=8, ncols=5, loc="upper center")
