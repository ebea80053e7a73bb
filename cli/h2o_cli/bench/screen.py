"""Results as a text table."""

from __future__ import annotations

import sys

from rich.table import Table

from h2o_cli.bench.report import PHASES, Results
from h2o_cli.common import make_console

WIDTH = 200  # if the terminal's width is unknown


def show(results: Results) -> None:
    console = make_console()
    if not sys.stdout.isatty():
        console.width = WIDTH
    rates, machine = results.rates, results.machine
    console.print(
        f"{results.model} on {machine['cpu']}, {machine['cores']} cores, load {machine['load_average']:.1f}; "
        f"measured {rates.in_words()}",
        highlight=False,
    )
    timed = any(row["dense_s"] is not None for row in results.rows)
    phases = [phase for phase in PHASES if any(row[f"{phase}_s"] for row in results.rows)]
    table = Table("length", "contestant", "settings", title=f"{results.mode}, {results.rows[0]['precision']}")
    achieved = "GB/s" if results.mode == "decode" else "GFLOP/s"
    columns = ["median", "min … max", "tokens/s", achieved, "cpu", "h2o faster by", "by cpu", "of floor"]
    lossy = any(row["perplexity_change"] is not None for row in results.rows)
    columns += ["peak MiB", *(["perplexity"] if lossy else []), *(["/".join(phases)] if timed else [])]
    for name in columns:
        table.add_column(name, justify="right")
    for row in results.rows:
        cells = [
            f"{row['length']:,}",
            f"{row['name']} {row['version']}",
            row["settings"],
            _time(row["median_s"]),
            f"{_time(row['min_s'])} … {_time(row['max_s'])}",
            f"{row['tokens_per_s']:,.1f}",
            f"{(row['flop_per_s'] or row['bytes_per_s']) / 1e9:,.1f}",
            _time(row["cpu_s"]),
            f"{row['h2o_speedup']:.2f}x" if row["h2o_speedup"] else "",
            f"{row['h2o_speedup_cpu']:.2f}x" if row["h2o_speedup_cpu"] else "",
            f"{row['floor_share']:.0%}" if row["floor_share"] else "",
            f"{row['peak_bytes'] / 2**20:,.0f}",
        ]
        if lossy:
            change = row["perplexity_change"]
            cells.append("" if change is None else f"{change:+.2%}")
        if timed:
            times = [row[f"{phase}_s"] for phase in phases]
            cells.append("" if times[0] is None else " / ".join(_time(seconds) for seconds in times))
        table.add_row(*cells)
    console.print(table)
    for absent in results.missing:
        where = f" at {absent.length:,}" if absent.length else ""
        label = f" ({absent.label})" if absent.label else ""
        console.print(
            f"not measured{where}: {absent.name}{label}: {absent.reason}", highlight=False, markup=False
        )


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{1e3 * seconds:.2f} ms"
