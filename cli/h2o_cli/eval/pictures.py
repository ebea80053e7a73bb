"""The pictures of a comparison, each a PNG file in a folder."""

from __future__ import annotations

import importlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from io import BytesIO
from math import expm1
from pathlib import Path
from statistics import fmean
from typing import Any

from h2o_cli.eval.contestants import Kind
from h2o_cli.eval.results import Measure, Summary, Value
from h2o_cli.short_names import short_names
from h2o_runtime.errors import BackendError, OutputError
from h2o_runtime.files.outputs import check_own_target, replace_file


def _pyplot() -> Any:
    """matplotlib without a display. Raises BackendError if it is not installed."""
    try:
        matplotlib: Any = importlib.import_module("matplotlib")
    except ImportError as error:
        raise BackendError(
            f"pictures need matplotlib ({error}): pip install 'h2o-edge[bench]', or in a checkout "
            "pip install '.[bench]'"
        ) from None
    matplotlib.use("Agg")
    return importlib.import_module("matplotlib.pyplot")


def check_folder(folder: Path) -> None:
    """Checked before an hour of measuring, not after. Raises BackendError without matplotlib, and OutputError."""
    _pyplot()
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: cannot be made: {error.strerror}") from error
    for name in PICTURES:
        check_own_target(folder / name, b"\x89PNG", "PNG picture")


def draw(folder: Path, values: Sequence[Value], summaries: Sequence[Summary]) -> list[str]:
    """Those for which there are numbers → their names."""
    plot, drawn = _pyplot(), []
    for name, (title, picture) in PICTURES.items():
        with plot.rc_context({"font.size": 9}):
            figure = picture(plot, values, summaries)
            if figure is not None:
                figure.suptitle(title)
                content = BytesIO()
                figure.savefig(content, dpi=110)
                plot.close(figure)
                replace_file(folder / name, content.getvalue())
                drawn.append(name)
    return drawn


def _increases(plot: Any, values: Sequence[Value], summaries: Sequence[Summary]) -> Any:
    return _bars(plot, _main(summaries))


def _settings(plot: Any, values: Sequence[Value], summaries: Sequence[Summary]) -> Any:
    changed = [row for row in summaries if row.kind is Kind.ABLATION]
    return _bars(plot, [*(row for row in summaries if row.kind is Kind.RULE), *changed]) if changed else None


def _by_position(plot: Any, values: Sequence[Value], summaries: Sequence[Summary]) -> Any:
    losses = _means(values, Measure.LOSS_AT)
    truth = losses.get(summaries[0].contestant, {})
    rises = {
        name: {place: 100 * expm1(loss - truth[place]) for place, loss in at.items()}
        for name, at in losses.items()
    }
    figure = _curves(plot, rises, summaries, "position", "increase of the perplexity, %")
    if figure is not None:
        figure.axes[0].axhline(0, color="black", linewidth=0.8)
    return figure


def _by_layer(plot: Any, values: Sequence[Value], summaries: Sequence[Summary]) -> Any:
    figure = _curves(plot, _means(values, Measure.RECALL_AT), summaries, "layer", "recall")
    if figure is not None:
        figure.axes[0].set_ylim(0, 1.02)
    return figure


def _needles(plot: Any, values: Sequence[Value], summaries: Sequence[Summary]) -> Any:
    hits: dict[tuple[str, int, str], list[float]] = defaultdict(list)
    for value in values:
        if value.measure is Measure.NEEDLE:
            hits[value.contestant, value.length, value.place].append(value.value)
    names = [row.contestant for row in summaries if row.needle is not None]
    if not names:
        return None
    lengths = sorted({length for _, length, _ in hits})
    depths = sorted({place for _, _, place in hits}, key=float)
    size = (3.2 * len(names), 1.2 + 0.3 * len(depths))
    figure, grid = plot.subplots(1, len(names), figsize=size, layout="constrained", squeeze=False)
    for axes, (name, title) in zip(grid.flat, short_names(names).items(), strict=True):
        cells = [[hits[name, length, depth] for length in lengths] for depth in depths]
        shares = [[fmean(cell) for cell in row] for row in cells]
        axes.imshow(shares, vmin=0, vmax=1, cmap="RdYlGn", aspect="auto")
        for y, row in enumerate(cells):
            for x, cell in enumerate(row):
                axes.text(x, y, f"{sum(cell):g} of {len(cell)}", ha="center", va="center", fontsize=7)
        axes.set_xticks(range(len(lengths)), [f"{length:,}" for length in lengths])
        axes.set_yticks(range(len(depths)), [f"{float(depth):.0%}" for depth in depths])
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("tokens")
        axes.set_ylabel("depth")
    return figure


Picture = Callable[[Any, Sequence[Value], Sequence[Summary]], Any]
PICTURES: dict[str, tuple[str, Picture]] = {
    "increase.png": ("Increase of the perplexity over full attention's", _increases),
    "position.png": ("Increase by position in the text, mean over texts", _by_position),
    "recall.png": ("Attention mass of the memory over the best of as many keys", _by_layer),
    "settings.png": ("Increase where the rule differs in one setting", _settings),
    "needles.png": ("Facts found, by length of the prompt and depth in it", _needles),
}


def _main(summaries: Sequence[Summary]) -> list[Summary]:
    """Contestants with their own curves: neither full attention nor one setting of many."""
    return [row for row in summaries if row.kind not in (Kind.TRUTH, Kind.ABLATION)]


def _means(values: Sequence[Value], measure: Measure) -> dict[str, dict[int, float]]:
    """By contestant and place, over texts."""
    found: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for value in values:
        if value.measure is measure:
            found[value.contestant][int(value.place)].append(value.value)
    return {name: {place: fmean(all) for place, all in places.items()} for name, places in found.items()}


def _curves(
    plot: Any, numbers: dict[str, dict[int, float]], summaries: Sequence[Summary], x: str, y: str
) -> Any:
    """A curve a contestant, by place; None without numbers."""
    rows = [row.contestant for row in _main(summaries) if row.contestant in numbers]
    if not rows:
        return None
    figure, axes = plot.subplots(figsize=(8, 3.9), layout="constrained")
    for name, label in short_names(rows).items():
        places = sorted(numbers[name])
        axes.plot(places, [numbers[name][place] for place in places], "o-", markersize=3, label=label)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(True, alpha=0.3)
    axes.legend(fontsize=8)
    return figure


def _bars(plot: Any, rows: Sequence[Summary]) -> Any:
    """Increases of the perplexity, in the prompt and after it; None without the former."""
    rows = [row for row in rows if row.increase is not None][::-1]
    if not rows:
        return None
    figure, axes = plot.subplots(figsize=(8, 0.9 + 0.45 * len(rows)), layout="constrained")
    for label, colour, shift, rises in (
        ("inside the prompt", "#2c6e9b", 0.2, [row.increase for row in rows]),
        ("the continuation", "#d98032", -0.2, [row.decoded_increase for row in rows]),
    ):
        known = [(place + shift, 100 * rise) for place, rise in enumerate(rises) if rise is not None]
        if known:
            axes.barh(*zip(*known, strict=True), 0.38, label=label, color=colour)
    names = short_names(row.contestant for row in rows)
    axes.set_yticks(range(len(rows)), [names[row.contestant] for row in rows])
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_xlabel("increase of the perplexity, %")
    axes.legend()
    return figure
