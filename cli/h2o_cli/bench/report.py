"""From measured series to rows: one flat record per contestant and length, for JSON, CSV and the screen."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from h2o_cli.arithmetic import attention_flop, decode_bytes, dense_flop, layer_flop
from h2o_cli.bench.contestants import Entry
from h2o_cli.bench.machine import MachineRates
from h2o_cli.bench.measure import Missing, Series
from h2o_cli.bench.systems.system import OWN_SYSTEM
from h2o_runtime.backends.onnxruntime import as_computed, products_on_cpu
from h2o_runtime.devices.timings import DENSE
from h2o_runtime.execution.footprint import footprint
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.policies.decode import DECODE
from h2o_runtime.policies.prefill import PREFILL, PrefillPolicy

PHASES = (DENSE, *dict.fromkeys(phase for policy in PREFILL.kinds for phase in policy.phases))
FIRST_LINE = b"mode,model,name"  # how a file of rows begins, of any version


@dataclass(frozen=True)
class Results:
    """All results of a run."""

    mode: str  # prefill, decode or attention
    model: str
    command: str
    machine: dict[str, Any]
    rates: MachineRates
    rows: tuple[dict[str, Any], ...]
    missing: tuple[Missing, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "mode": self.mode,
            "model": self.model,
            "command": self.command,
            "machine": self.machine,
            "measured_rates": asdict(self.rates),
            "rows": list(self.rows),
            "absent": [asdict(absent) for absent in self.missing],
        }


def to_csv(rows: Sequence[dict[str, Any]]) -> str:
    """All numbers but those of single rounds."""
    out = io.StringIO()
    columns = [name for name in rows[0] if name != "seconds"]
    writer = csv.DictWriter(out, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def make_rows(
    mode: str, entry: Entry, series: Sequence[Series], rates: MachineRates
) -> tuple[dict[str, Any], ...]:
    """Rows in the order of lengths and contestants, including all settings that ran."""
    model = entry.model.manifest.model
    best = rates.bandwidth if mode == "decode" else rates.flops
    rows = []
    for single in series:
        length = single.length
        alike = {measured.contestant.name: measured for measured in series if measured.length == length}
        ours = alike.get(entry.name_of(entry.prefill))
        truth = alike.get(entry.name_of(entry.exact))
        policy = PREFILL.make(single.contestant.settings.get("prefill") or PREFILL.settings_of(entry.exact))
        least = _least_work(mode, model, single, policy)
        middle = statistics.median(single.seconds)
        floor = least / best if best else None
        rows.append(
            {
                "mode": mode,
                "model": entry.model.name,
                "name": single.contestant.name,
                "version": single.version,
                "settings": single.contestant.label,
                "precision": model.dtype,
                "threads": entry.threads,
                "length": length,
                "repetitions": len(single.seconds),
                "median_s": middle,
                **_spread(single.seconds),
                "cpu_s": min(single.cpu),
                "tokens_per_s": (1 if mode == "decode" else length) / middle,
                "flop_per_s": None if mode == "decode" else least / middle,
                "bytes_per_s": least / middle if mode == "decode" else None,
                "h2o_speedup": _paired_ratio(single.seconds, ours.seconds) if ours else None,
                "h2o_speedup_best": min(single.seconds) / min(ours.seconds) if ours else None,
                "h2o_speedup_cpu": min(single.cpu) / min(ours.cpu) if ours else None,
                **_phases(single),
                "floor_s": floor,
                "floor_share": floor and floor / middle,
                "peak_bytes": single.peak,
                "libraries_bytes": single.libraries,
                "estimate_bytes": _estimate(mode, entry, single, policy),
                "same_token": _agrees(single, truth),
                "seconds": single.seconds,
            }
        )
    return tuple(rows)


def _least_work(mode: str, model: ModelSpec, single: Series, policy: PrefillPolicy[Any]) -> int:
    """Bytes read for a token in decode, otherwise floating-point operations."""
    if mode == "decode":
        decoding = DECODE.make(single.contestant.settings.get("decoding", {}))
        return decode_bytes(model, single.length, decoding)
    if mode == "attention":
        return layer_flop(model, policy, single.length)
    return dense_flop(model, single.length) + attention_flop(model, policy, single.length)


def _spread(seconds: list[float]) -> dict[str, float]:
    if len(seconds) < 2:
        first = third = seconds[0]
    else:
        first, _, third = statistics.quantiles(seconds, n=4, method="inclusive")
    return {"min_s": min(seconds), "q1_s": first, "q3_s": third, "max_s": max(seconds)}


def _paired_ratio(theirs: list[float], ours: list[float]) -> float:
    """How many times faster h2o is: the median over rounds of the ratio within a round."""
    return statistics.median(their / our for their, our in zip(theirs, ours, strict=False))


def _phases(series: Series) -> dict[str, float | None]:
    if not series.phases:
        return {f"{phase}_s": None for phase in PHASES}
    return {
        f"{phase}_s": statistics.median(phases.get(phase, 0.0) for phases in series.phases)
        for phase in PHASES
    }


def _estimate(mode: str, entry: Entry, series: Series, policy: PrefillPolicy[Any]) -> int | None:
    """The runtime's own estimate, plus its libraries."""
    if series.contestant.system != OWN_SYSTEM or mode == "decode":
        return None
    manifest = entry.model.manifest
    if entry.backend != "onnxruntime" or entry.device != "cpu":
        return footprint(manifest.model, series.length, policy).total
    form, precision = products_on_cpu(manifest, entry.threads, entry.dense_form, entry.dense_precision)
    native = form == "native"
    model = as_computed(manifest.model, native)
    return footprint(model, series.length, policy, native_products=native, dense_precision=precision).total


def _agrees(series: Series, truth: Series | None) -> bool | None:
    """Whether the most likely token equals full attention's, for contestants with full attention."""
    if truth is None or series.token < 0 or not series.contestant.exact:
        return None
    return series.token == truth.token


def table_of(results: Results) -> list[RenderableType]:
    """The results for the screen."""
    machine = results.machine
    title = (
        f"{results.model} on {machine['cpu']}, {machine['cores']} cores, load {machine['load_average']:.1f}; "
        f"measured {results.rates.in_words()}"
    )
    timed = any(row["dense_s"] is not None for row in results.rows)
    phases = [phase for phase in PHASES if any(row[f"{phase}_s"] for row in results.rows)]
    table = Table("length", "contestant", "settings", title=f"{results.mode}, {results.rows[0]['precision']}")
    achieved = "GB/s" if results.mode == "decode" else "GFLOP/s"
    columns = ["median", "min … max", "tokens/s", achieved, "cpu", "h2o faster by", "by cpu", "of floor"]
    columns += ["peak MiB", *(["/".join(phases)] if timed else [])]
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
        if timed:
            times = [row[f"{phase}_s"] for phase in phases]
            cells.append("" if times[0] is None else " / ".join(_time(seconds) for seconds in times))
        table.add_row(*cells)
    missing = [
        f"not measured{f' at {absent.length:,}' if absent.length else ''}: {absent.name}"
        f"{f' ({absent.label})' if absent.label else ''}: {absent.reason}"
        for absent in results.missing
    ]
    return [escape(title), table, *map(escape, missing)]


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{1e3 * seconds:.2f} ms"
