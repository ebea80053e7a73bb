"""h2o-bench: speed and memory of the runtime, of full attention and of the tools that people use today."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from h2o_cli.bench.contestants import ATTENTION_PEERS, PEERS, Contestant, Entry, attentions, models
from h2o_cli.bench.floor import MachineRates, better
from h2o_cli.bench.machine import describe
from h2o_cli.bench.measure import Measurement, Rounds
from h2o_cli.bench.model import BenchmarkModel
from h2o_cli.bench.options import bench_options
from h2o_cli.bench.process import Failed, WorkerProcess
from h2o_cli.bench.report import Results, make_rows
from h2o_cli.bench.screen import show
from h2o_cli.bench.systems.base import Absent
from h2o_cli.common import guarded, make_console, print_json, start_logging
from h2o_cli.prefill_options import prefill_config
from h2o_runtime.devices.select import resolve_device
from h2o_runtime.errors import BackendError, ConfigError, OutputError
from h2o_runtime.process import default_threads


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Measure, in interleaved rounds, against the tools that people use today.

    BUNDLE_OR_SHAPE is a bundle's folder, or smollm2-135m or llama-3.2-1b: a random checkpoint of that shape is
    then written and exported. Every contestant runs in a process of its own, with the same threads; peers that
    are not installed are left out, and the results say so.
    """


@main.command()
@bench_options(PEERS, "1024,2048,4096,8192")
@guarded
def prefill(**flags: Any) -> None:
    """Time to the first token, and where it goes."""
    _measure("prefill", flags)


@main.command()
@bench_options(PEERS, "1024,8192")
@click.option("--tokens", type=click.IntRange(min=1), default=16, show_default=True, help="Tokens a round.")
@guarded
def decode(tokens: int, **flags: Any) -> None:
    """Time of one more token, at contexts of the given lengths."""
    _measure("decode", flags, tokens)


@main.command()
@bench_options(ATTENTION_PEERS, "1024,2048,4096,8192,16384")
@guarded
def attention(**flags: Any) -> None:
    """One layer's attention alone, scores and selection included."""
    _measure("attention", flags)


def _measure(mode: str, flags: dict[str, Any], decode_tokens: int = 0) -> None:
    start_logging(flags["verbose"])
    _check_outputs(flags["csv_file"], flags["png_file"])
    model = BenchmarkModel.open(flags["model"], flags["work_dir"], flags["dtype"], flags["checkpoint"])
    threads = flags["threads"] or default_threads()
    if threads > default_threads():
        raise ConfigError(
            f"threads must be at most the {default_threads()} cores of this process", field="threads"
        )
    backend, device = flags["backend"], resolve_device(flags["device"], flags["backend"])
    entry = Entry(
        model, threads, prefill_config(model.manifest.prefill, flags), backend, device, flags["attention"]
    )
    rounds = Rounds(
        flags["lengths"], flags["repetitions"], flags["warm_up"], decode_tokens, flags["time_limit"]
    )
    results = run(mode, entry, rounds, flags["peers"])
    if flags["csv_file"]:
        _write(flags["csv_file"], results.to_csv())
    if flags["png_file"]:
        from h2o_cli.bench.picture import draw

        draw(results, flags["png_file"])
    if flags["as_json"]:
        print_json(results.to_json())
    else:
        show(results)


def run(mode: str, entry: Entry, rounds: Rounds, peers: tuple[str, ...]) -> Results:
    """The whole measurement. Raises BackendError where not even the own runtime gives a number."""
    contestants: Sequence[Contestant] = (
        attentions(entry, peers) if mode == "attention" else models(entry, peers, mode == "decode")
    )
    console = make_console(stderr=True)
    machine = describe()
    with console.status("measuring the machine") as status:
        rates = _rates(entry)
        measurement = Measurement(contestants, rounds, lambda text: status.update(text))
        measurement.run()
        status.update("measuring the machine")
        rates = better(rates, _rates(entry))
    if not measurement.series:
        raise BackendError(f"nothing could be measured: {measurement.missing[0].reason}")
    return Results(
        mode=mode,
        model=entry.model.name,
        command=shlex.join(["h2o-bench", *sys.argv[1:]]),
        machine=machine,
        rates=rates,
        lead=entry.lead,
        rows=make_rows(mode, entry, measurement.series, rates),
        missing=tuple(measurement.missing),
    )


def _rates(entry: Entry) -> MachineRates:
    try:
        with WorkerProcess("machine", entry.common) as worker:
            return MachineRates(**worker.ask("rates"))
    except (Absent, Failed) as reason:
        raise BackendError(f"the machine's own speed could not be measured: {reason}") from None


def _check_outputs(*paths: Path | None) -> None:
    """Before hours of measuring, not after."""
    for path in paths:
        if path is not None and not path.parent.is_dir():
            raise OutputError(f"{path}: no such folder: {path.parent}")
    if paths[-1] is not None:
        from h2o_cli.bench.picture import import_pyplot

        import_pyplot()


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        with suppress(OSError):
            path.unlink()
        raise OutputError(f"{path}: cannot be written: {error.strerror}") from error
