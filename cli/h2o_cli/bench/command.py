"""h2o-bench: speed and memory of the runtime, of full attention and of widely used tools."""

from __future__ import annotations

import logging
import operator
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from h2o_cli import usage
from h2o_cli.bench.benchmark_model import BenchmarkModel, default_work_dir
from h2o_cli.bench.contestants import ATTENTION_PEERS, PEERS, Contestant, Entry, attentions, models
from h2o_cli.bench.dense import dense
from h2o_cli.bench.machine import MachineRates, better, describe
from h2o_cli.bench.measure import Measurement, Rounds
from h2o_cli.bench.options import FIRST, bench_options, beside_option, model_files
from h2o_cli.bench.report import FIRST_LINE, Results, make_rows, table_of, to_csv
from h2o_cli.bench.systems.system import Absent
from h2o_cli.bench.worker import Failed, WorkerProcess
from h2o_cli.common import make_console, print_json, show, start_logging
from h2o_cli.help import Group, HelpfulCommand, grouped, version_option
from h2o_cli.model_options import AttentionCompute, Compute, compute_option, decode_options
from h2o_cli.policy_options import chosen_prefill, policies_beside
from h2o_runtime.backends.select import (
    check_dense_form,
    check_dense_precision,
    refusal_on_gpu,
    resolve_device,
)
from h2o_runtime.errors import BackendError, ConfigError
from h2o_runtime.files.inputs import read_input
from h2o_runtime.files.outputs import check_own_target, replace_file
from h2o_runtime.limits import MAX_CONTEXT
from h2o_runtime.policies.decode import FullDecode
from h2o_runtime.policies.prefill import policy_on_device
from h2o_runtime.process import default_threads
from h2o_runtime.text import Tokenizer, decode_utf8

log = logging.getLogger(__name__)

WIDTH = 200  # of a table, if the terminal's width is unknown


@click.group(cls=usage.Group, context_settings={"help_option_names": ["-h", "--help"]})
@version_option
def main() -> None:
    """Measure speed against widely used tools, in interleaved rounds.

    BUNDLE_OR_SHAPE is a bundle's folder, a checkpoint, which is exported once and kept, or a shape (smollm2-135m or
    llama-3.2-1b). For a shape a random checkpoint is written and exported. Every contestant runs in its own
    process, with the same threads. Peers that are not installed are left out, and the results say so.
    """


@main.command(cls=HelpfulCommand, first=(*FIRST, "checkpoint"))
@bench_options(PEERS, "1024,2048,4096,8192")
@model_files
@grouped(Group.MEASUREMENT, beside_option)
@grouped(Group.MACHINE, compute_option(Compute))
def prefill(**flags: Any) -> None:
    """Time to the first token, by phase."""
    _measure("prefill", flags)


@main.command(cls=HelpfulCommand, first=(*FIRST, "checkpoint"))
@bench_options(PEERS, "1024,8192")
@model_files
@grouped(
    Group.MEASUREMENT,
    click.option(
        "--decode-tokens",
        type=click.IntRange(min=1),
        default=16,
        show_default=True,
        help="Tokens decoded per round.",
    ),
)
@decode_options
@grouped(Group.MACHINE, compute_option(Compute))
def decode(decode_tokens: int, **flags: Any) -> None:
    """Time per generated token, at contexts of the given lengths."""
    _measure("decode", flags, decode_tokens)


@main.command(cls=HelpfulCommand, first=FIRST)
@bench_options(ATTENTION_PEERS, "1024,2048,4096,8192,16384")
@grouped(Group.MEASUREMENT, beside_option)
@grouped(Group.MACHINE, compute_option(AttentionCompute))
def attention(**flags: Any) -> None:
    """Attention of one layer, including scores and selection."""
    _measure("attention", flags)


main.add_command(dense)


def _openvino_model(folder: Path | None) -> Path | None:
    """Raises ConfigError for a folder without a manifest."""
    if folder is not None and not (folder / "openvino_model.xml").is_file():
        raise ConfigError(
            f"{folder}: has no openvino_model.xml; name a folder that OpenVINO wrote", field="openvino_model"
        )
    return folder


def _measure(mode: str, flags: dict[str, Any], decode_tokens: int = 0) -> None:
    start_logging(flags["verbose"])
    if flags["csv_file"]:
        check_own_target(flags["csv_file"], FIRST_LINE, "rows of h2o-bench")
    model = BenchmarkModel.open(
        flags["model"], flags["work_dir"] or default_work_dir(), flags["dtype"], flags.get("checkpoint")
    )
    threads = flags["threads"] or default_threads()
    if threads > default_threads():
        raise ConfigError(
            f"threads must be at most the {default_threads()} cores of this process", field="threads"
        )
    bundled, backend = model.manifest.prefill, flags["backend"]
    prefill = chosen_prefill(bundled, flags) or bundled
    decoding = flags.get("decode") or FullDecode()
    refusal = refusal_on_gpu(model.manifest.model, prefill, decoding)
    device = resolve_device(flags["device"], backend, refusal)
    prefill = policy_on_device(prefill, device)
    entry = Entry(
        model,
        threads,
        prefill,
        backend,
        device,
        beside=tuple(policies_beside(flags.get("beside", ()), prefill, operator.eq)),
        decoding=decoding,
        openvino_model=_openvino_model(flags.get("openvino_model")),
        **asdict(flags["compute"]),
    )
    spec, on_cpu = model.manifest.model, device == "cpu"
    check_dense_form(entry.dense_form, backend, on_cpu, spec.quantized)
    check_dense_precision(entry.dense_precision, entry.dense_form, backend, on_cpu, spec)
    rounds = Rounds(flags["lengths"], flags["repetitions"], decode_tokens, flags["time_limit"])
    _check_lengths(model, rounds)
    if flags["text"]:
        entry = replace(entry, prompt=_prompt(flags["text"], model, max(rounds.lengths)))
    results = run(mode, entry, rounds, flags["peers"], flags["csv_file"])
    if flags["as_json"]:
        print_json(results.to_json())
    else:
        show(*table_of(results), width=WIDTH)


def run(mode: str, entry: Entry, rounds: Rounds, peers: tuple[str, ...], file: Path | None) -> Results:
    """The whole measurement.

    After each round `file` is replaced as a whole: a process that is killed leaves the earlier rows.
    Raises BackendError if not even the own runtime could be measured.
    """
    contestants: Sequence[Contestant] = (
        attentions(entry, peers) if mode == "attention" else models(entry, peers, mode == "decode")
    )
    console = make_console(stderr=True)
    machine = describe()
    with console.status("measuring the machine") as status:
        rates = _rates(entry)

        def rows() -> tuple[dict[str, Any], ...]:
            found = make_rows(mode, entry, measurement.series, rates)
            if file is not None:
                replace_file(file, to_csv(found))
            return found

        measurement = Measurement(contestants, rounds, status.update, rows)
        measurement.run()
        status.update("measuring the machine")
        rates = better(rates, _rates(entry))
    if not measurement.series:
        names = [entry.name_of(policy) for policy in entry.policies]
        left_out = [absent for absent in measurement.missing if absent.name in names]
        raise BackendError(f"nothing could be measured: {(left_out or measurement.missing)[0].reason}")
    return Results(
        mode=mode,
        model=entry.model.name,
        command=shlex.join(["h2o-bench", *sys.argv[1:]]),
        machine=machine,
        rates=rates,
        rows=rows(),
        missing=tuple(measurement.missing),
    )


def _prompt(path: Path, model: BenchmarkModel, length: int) -> tuple[int, ...]:
    """Raises ConfigError if the text is missing or too short."""
    ids = Tokenizer.load(model.bundle).encode(decode_utf8(read_input(path), str(path)))
    if len(ids) < length:
        raise ConfigError(
            f"{path}: has {len(ids):,} tokens, and {length:,} are needed: name a longer text, or shorter --lengths",
            field="text",
        )
    return tuple(ids[:length])


def _check_lengths(model: BenchmarkModel, rounds: Rounds) -> None:
    """Raises ConfigError for lengths beyond the context; warns beyond the trained context."""
    longest, trained = max(rounds.lengths), model.manifest.model.max_position_embeddings
    room = rounds.room
    if longest + room > MAX_CONTEXT:
        raise ConfigError(
            f"lengths: {longest:,} tokens are beyond the context, which has at most {MAX_CONTEXT - room:,} here",
            field="lengths",
        )
    if longest + room > trained:
        log.warning(
            "%d tokens are beyond the %d positions that the model was trained for: speed can be measured, but "
            "answers would be worse",
            longest + room,
            trained,
        )


def _rates(entry: Entry) -> MachineRates:
    try:
        with WorkerProcess("machine", entry.common) as worker:
            return MachineRates(**worker.ask("rates", dtype=entry.model.manifest.model.dtype))
    except (Absent, Failed) as reason:
        raise BackendError(f"the machine's own speed could not be measured: {reason}") from None
