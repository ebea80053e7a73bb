"""Lengths that several machines share, and their rows in one file."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Run

from h2o_cli.bench.report import COLUMNS, to_csv
from h2o_cli.bench.resume import read_rows
from h2o_runtime.errors import InputError

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]
SMALL = ("--repetitions", 1, "--peers", "none", "-ub", 64, "--h2o-local", 16, "--h2o-heavy", 16, "-t", 1)


def lengths(file: Path) -> list[str]:
    return [row["length"] for row in csv.DictReader(file.read_text().splitlines())]


def test_merged_parts_are_the_whole_measurement(h2o: Run, tiny_bundle: Path, tmp_path: Path) -> None:
    first, second, merged = (tmp_path / f"{name}.csv" for name in ("first", "second", "merged"))
    flags = ("attention", tiny_bundle, "--lengths", "64,80,96", *SMALL)
    for number, file in enumerate((first, second), 1):
        assert h2o("bench", *flags, "--csv", file, "--shard", f"{number}/2").returncode == 0
    assert [sorted(set(lengths(file))) for file in (first, second)] == [["64", "96"], ["80"]]

    done = h2o("bench", "merge", second, first, "-o", merged)
    assert (done.returncode, done.stderr) == (0, b"")
    assert lengths(merged) == sorted(lengths(first) + lengths(second))
    before = merged.read_text()
    assert h2o("bench", *flags, "--csv", merged, "--resume").returncode == 0
    assert merged.read_text() == before, "nothing is measured again"

    twice = h2o("bench", "merge", first, first, "-o", tmp_path / "out.csv")
    assert (twice.returncode, b"has length 64, which an earlier file has too" in twice.stderr) == (1, True)
    for column, value, words in (
        ("mode", "prefill", b"whose mode is 'prefill' and not 'attention'"),
        ("settings", "other", b"whose settings is 'other' and not"),
        ("", "", b"not a file that this version of h2o-bench wrote"),
    ):
        altered = [row | {column: value} for row in csv.DictReader(second.read_text().splitlines())]
        with (tmp_path / "other.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(altered[0]))
            writer.writeheader()
            writer.writerows(altered)
        refused = h2o("bench", "merge", first, tmp_path / "other.csv", "-o", tmp_path / "out.csv")
        assert refused.returncode == 1
        assert words in b" ".join(refused.stderr.split())
    assert not (tmp_path / "out.csv").exists()


def test_more_parts_than_lengths(h2o: Run, tiny_bundle: Path) -> None:
    done = h2o("bench", "attention", tiny_bundle, "--lengths", "64", *SMALL, "--shard", "2/2")
    assert done.returncode == 2
    assert b"--shard is empty: there are 1 lengths" in done.stderr


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda row: row | {"length": ""}, "it has no length"),
        (lambda row: row | {"name": ""}, "it has no name"),
        (lambda row: row | {"name": "  "}, "it has no name"),
        (lambda row: row | {"length": "long"}, "invalid literal"),
        (lambda row: row | {"settings": "a" * 200_000}, "field larger than"),
    ],
    ids=["no length", "no name", "a name of blanks", "no number", "a long field"],
)
def test_a_damaged_row_is_told(tmp_path: Path, damage: Callable[[Any], Any], says: str) -> None:
    row = dict.fromkeys(COLUMNS, "") | {"mode": "prefill", "model": "m", "name": "h2o"}
    row |= {"threads": 1, "length": 64, "repetitions": 1}
    file = tmp_path / "rows.csv"
    file.write_text(to_csv([row]))
    assert read_rows(file)[0]["length"] == 64
    file.write_text(to_csv([damage(row)]))
    with pytest.raises(InputError, match=f"a row of it is damaged .*{says}"):
        read_rows(file)
