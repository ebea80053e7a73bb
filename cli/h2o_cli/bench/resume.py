"""Rows of a stopped measurement, from its CSV file."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from h2o_cli.bench.contestants import Entry
from h2o_cli.bench.measure import Rounds
from h2o_cli.bench.report import COLUMNS
from h2o_runtime.errors import InputError, OutputError
from h2o_runtime.files.inputs import read_input
from h2o_runtime.text import decode_utf8

Rows = list[dict[str, Any]]

_TEXTS = ("mode", "model", "name", "version", "settings", "precision")
_NEEDED = ("mode", "model", "name", "threads", "length", "repetitions")
_COUNTS = ("threads", "length", "repetitions", "peak_bytes", "libraries_bytes", "estimate_bytes")


def finished_rows(path: Path, mode: str, entry: Entry, rounds: Rounds) -> Rows:
    """Rows of those lengths whose rounds are complete; none if there is no such file.

    All contestants share the rounds of a length, so an incomplete length starts again. Raises OutputError for
    a file of another measurement.
    """
    if not path.exists():
        return []
    try:
        rows = read_rows(path)
    except InputError as error:
        raise OutputError(f"{error}; leave out --resume") from error
    model = entry.model
    ours = {
        "mode": mode,
        "model": model.name,
        "precision": model.manifest.model.dtype,
        "threads": entry.threads,
        "settings": entry.settings_of(entry.lead),
    }
    for row in rows:
        of_ours = row["name"] == entry.name_of(entry.lead)
        differing = [
            key for key, value in ours.items() if row[key] != value and (of_ours or key != "settings")
        ]
        if differing:
            key = differing[0]
            raise OutputError(
                f"{path}: is of another measurement, whose {key} is {row[key]!r} and not {ours[key]!r}; leave out "
                "--resume, or name another file"
            )
    undone = {row["length"] for row in rows if row["repetitions"] < rounds.repetitions}
    return [row for row in rows if row["length"] in rounds.lengths and row["length"] not in undone]


def read_rows(path: Path) -> Rows:
    """All rows of a file. Raises InputError for one that this version of h2o-bench did not write."""
    reader = csv.DictReader(decode_utf8(read_input(path), str(path)).splitlines())
    if tuple(reader.fieldnames or ()) != COLUMNS:
        raise InputError(f"{path}: not a file that this version of h2o-bench wrote")
    try:
        return [_typed(row) for row in reader]
    except (ValueError, csv.Error) as error:
        raise InputError(f"{path}: a row of it is damaged ({error})") from error


def _typed(row: dict[str, Any]) -> dict[str, Any]:
    return {name: _value(name, text) for name, text in row.items()}


def _value(name: str, text: Any) -> Any:
    if not isinstance(text, str):
        raise ValueError("it is cut off")
    if name in _NEEDED and not text.strip():
        raise ValueError(f"it has no {name}")
    if name in _TEXTS:
        return text
    if not text:
        return None
    if name == "same_token":
        return text == "True"
    return int(text) if name in _COUNTS else float(text)
