"""h2o-bench merge: one measurement's rows of several files, which have some lengths each."""

from __future__ import annotations

from pathlib import Path

import click

from h2o_cli.bench.report import FIRST_LINE, to_csv
from h2o_cli.bench.resume import Rows, read_rows
from h2o_cli.common import guarded, show
from h2o_cli.effects import CheckedCommand
from h2o_runtime.errors import InputError
from h2o_runtime.files.outputs import check_own_target, replace_file
from h2o_runtime.policies.prefill import PREFILL

ALIKE = ("mode", "model", "precision", "threads")  # in all rows


@click.command(cls=CheckedCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="File for all rows; an earlier one is replaced.",
)
@guarded
def merge(files: tuple[Path, ...], output: Path) -> None:
    """Join the FILES that `--shard` and `--csv` of one measurement wrote on several machines.

    Compare times only if the machines are alike. Then the same command with --csv OUTPUT --resume, without --shard,
    draws the picture and shows all rows.
    """
    check_own_target(output, FIRST_LINE, "rows of h2o-bench")
    rows: Rows = []
    for file in files:
        found = read_rows(file)
        _check(file, found, rows)
        rows += found
    replace_file(output, to_csv(sorted(rows, key=lambda row: int(row["length"]))))
    show(f"{output}: {len(rows):,} rows of {len({row['length'] for row in rows}):,} lengths")


def _check(file: Path, found: Rows, before: Rows) -> None:
    """Raises InputError for rows that do not go together with those of the files before.

    A peer has the settings that are best for it at each length; only those of our policies must be alike.
    """
    lengths = {row["length"] for row in before}
    settings = {row["name"]: row["settings"] for row in before if row["name"].split()[0] in PREFILL.names}
    for row in found:
        if row["length"] in lengths:
            raise InputError(
                f"{file}: has length {row['length']:,}, which an earlier file has too: leave out one of the two"
            )
        differing = next((key for key in ALIKE if before and row[key] != before[0][key]), None)
        if differing is None and row["settings"] != settings.get(row["name"], row["settings"]):
            differing = "settings"
        if differing is not None:
            expected = settings[row["name"]] if differing == "settings" else before[0][differing]
            raise InputError(
                f"{file}: is of another measurement, whose {differing} is {row[differing]!r} and not {expected!r}"
            )
