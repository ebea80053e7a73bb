"""The plots of a report, each as inline SVG."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Sequence
from math import expm1
from statistics import fmean
from typing import Any

from h2o_cli.eval.contestants import Kind
from h2o_cli.eval.summary import Summary, differences
from h2o_cli.eval.values import Measure, Value
from h2o_cli.pyplot import import_pyplot
from h2o_cli.short_names import short_names

Plot = tuple[str, str, str]  # title, description, SVG


def plots(values: Sequence[Value], summaries: Sequence[Summary]) -> list[Plot]:
    """The plots for which there are numbers. Raises BackendError without matplotlib."""
    plot = import_pyplot()
    drawn: list[Plot] = []
    for title, meaning, draw in (
        ("What it costs", "Increase of the perplexity over full attention's.", _bars),
        ("Where it costs", "Increase by position in the text, mean over texts.", _by_position),
        ("Recall by layer", "Attention mass of the memory over the best of as many keys.", _by_layer),
        ("One setting at a time", "Increase where the configured rule differs in one setting.", _settings),
        ("Needles", "Facts found, by length of the prompt and depth in it.", _needles),
    ):
        with plot.rc_context({"svg.fonttype": "none", "font.size": 9, "svg.hashsalt": "h2o-eval"}):
            figure = draw(plot, values, summaries)
            if figure is not None:
                drawn.append((title, meaning, _svg(figure)))
                plot.close(figure)
    return drawn


def _svg(figure: Any) -> str:
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


def _main(summaries: Sequence[Summary]) -> list[Summary]:
    """Contestants with their own curves: neither full attention nor one setting of many."""
    return [row for row in summaries if row.kind not in (Kind.TRUTH.value, Kind.ABLATION.value)]


def _bars(plot: Any, values: Sequence[Value], summaries: Sequence[Summary]) -> Any:
    rows = [row for row in _main(summaries) if row.increase is not None][::-1]
    if not rows:
        return None
    figure, axes = plot.subplots(figsize=(8, 0.6 + 0.45 * len(rows)), layout="constrained")
    places = range(len(rows))
    axes.barh(
        [place + 0.2 for place in places],
        [100 * (row.increase or 0) for row in rows],
        0.38,
        label="inside the prompt",
        color="#2c6e9b",
    )
    decoded = [(place, row.decoded_increase) for place, row in zip(places, rows, strict=True)]
    if any(value is not None for _, value in decoded):
        axes.barh(
            [place - 0.2 for place, value in decoded if value is not None],
            [100 * value for _, value in decoded if value is not None],
            0.38,
            label="the continuation",
            color="#d98032",
        )
    names = short_names(row.contestant for row in rows)
    axes.set_yticks(places, [names[row.contestant] for row in rows])
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_xlabel("increase of the perplexity, %")
    axes.legend()
    return figure


def _by_position(plot: Any, values: Sequence[Value], summaries: Sequence[Summary]) -> Any:
    losses = _means(values, Measure.LOSS_AT)
    truth = next((row.contestant for row in summaries if row.kind == Kind.TRUTH.value), None)
    if truth is None or not any(row.contestant in losses for row in _main(summaries)):
        return None
    figure, axes = plot.subplots(figsize=(8, 3.6), layout="constrained")
    names = short_names(row.contestant for row in _main(summaries))
    for row in _main(summaries):
        losses_at = losses.get(row.contestant, {})
        places = sorted(losses_at, key=int)
        rises = [
            100 * expm1(losses_at[place] - losses[truth][place]) for place in places if place in losses[truth]
        ]
        at, label = [int(place) for place in places][: len(rises)], names[row.contestant]
        axes.plot(at, rises, "o-", markersize=3, label=label)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xlabel("position")
    axes.set_ylabel("increase of the perplexity, %")
    axes.grid(True, alpha=0.3)
    axes.legend(fontsize=8)
    return figure


def _by_layer(plot: Any, values: Sequence[Value], summaries: Sequence[Summary]) -> Any:
    recall = _means(values, Measure.RECALL_AT)
    if not recall:
        return None
    figure, axes = plot.subplots(figsize=(8, 3.6), layout="constrained")
    names = short_names(row.contestant for row in _main(summaries))
    for row in _main(summaries):
        by_layer = recall.get(row.contestant, {})
        layers = sorted(map(int, by_layer))
        shares = [by_layer[str(layer)] for layer in layers]
        axes.plot(layers, shares, "o-", markersize=3, label=names[row.contestant])
    axes.set_xlabel("layer")
    axes.set_ylabel("recall")
    axes.set_ylim(0, 1.02)
    axes.grid(True, alpha=0.3)
    axes.legend(fontsize=8)
    return figure


def _settings(plot: Any, values: Sequence[Value], summaries: Sequence[Summary]) -> Any:
    rule = next((row for row in summaries if row.kind == Kind.RULE.value), None)
    panels: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for row in summaries:
        different = differences(rule, row) if rule and row.increase is not None else {}
        if len(different) == 1:
            name, value = next(iter(different.items()))
            panels[name].append((value, 100 * (row.increase or 0)))
    if rule is None or rule.increase is None or not panels:
        return None
    width = min(len(panels), 4)
    height = -(-len(panels) // width)
    figure, grid = plot.subplots(
        height, width, figsize=(2.6 * width, 2.2 * height), layout="constrained", sharey=True, squeeze=False
    )
    values_of = rule.values
    for axes, (name, points) in zip(grid.flat, panels.items(), strict=False):
        points = sorted(
            [*points, (values_of[name], 100 * rule.increase)], key=lambda point: _number(point[0])
        )
        colours = ["#c0392b" if value == values_of[name] else "#2c6e9b" for value, _ in points]
        axes.bar([value for value, _ in points], [rise for _, rise in points], color=colours)
        axes.set_title(name)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    for axes in grid[:, 0]:
        axes.set_ylabel("increase, %")
    return figure


def _needles(plot: Any, values: Sequence[Value], summaries: Sequence[Summary]) -> Any:
    hits: dict[tuple[str, int, str], list[float]] = defaultdict(list)
    for value in values:
        if value.measure is Measure.NEEDLE:
            hits[value.contestant, value.length, value.place].append(value.value)
    if not hits:
        return None
    found = {cell: fmean(shares) for cell, shares in hits.items()}
    names = [row.contestant for row in summaries if any(key[0] == row.contestant for key in found)]
    lengths = sorted({length for _, length, _ in found})
    depths = sorted({place for _, _, place in found}, key=float)
    width = min(len(names), 3)
    height = -(-len(names) // width)
    figure, grid = plot.subplots(
        height,
        width,
        figsize=(3.2 * width, (1.0 + 0.3 * len(depths)) * height),
        layout="constrained",
        squeeze=False,
    )
    for axes, name in zip(grid.flat, names, strict=False):
        cells = [[found.get((name, length, depth), float("nan")) for length in lengths] for depth in depths]
        axes.imshow(cells, vmin=0, vmax=1, cmap="RdYlGn", aspect="auto")
        for y, row in enumerate(cells):
            for x, share in enumerate(row):
                cases = len(hits.get((name, lengths[x], depths[y]), ()))
                told = f"{share * cases:g} of {cases}" if cases else ""
                axes.text(x, y, told, ha="center", va="center", fontsize=7)
        axes.set_xticks(range(len(lengths)), [f"{length:,}" for length in lengths])
        axes.set_yticks(range(len(depths)), [f"{float(depth):.0%}" for depth in depths])
        axes.set_title(name, fontsize=9)
        axes.set_xlabel("tokens")
        axes.set_ylabel("depth")
    for axes in list(grid.flat)[len(names) :]:
        axes.set_visible(False)
    return figure


def _means(values: Sequence[Value], measure: Measure) -> dict[str, dict[str, float]]:
    """By contestant and place, over texts."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for value in values:
        if value.measure is measure:
            found[value.contestant][value.place].append(value.value)
    return {
        name: {place: fmean(shares) for place, shares in places.items()} for name, places in found.items()
    }


def _number(text: str) -> tuple[float, str]:
    try:
        return float(text), ""
    except ValueError:
        return 0.0, text
