"""A report that several machines share: every case is done once, and the parts together are the whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.conftest import Run
from tests.cli.progress_lines import without_progress

from h2o_cli.eval.values import Value, from_csv
from h2o_cli.shard import Shard

pytestmark = pytest.mark.timeout(600)
FLAGS = (
    *("-n", 256, "--prefill", "h2o chunk_size=64 local=8 heavy=24 dense_tail=0", "-t", 1),
    *("--metrics", "perplexity,needle", "--needles", "lengths=192 depths=0,1 seeds=1"),
    *("--baselines", "local", "--no-ablate"),
)


def test_parts_are_all_cases_each_once() -> None:
    for count in (1, 2, 3, 7, 20):
        parts = [Shard(number, count).of(range(11)) for number in range(1, count + 1)]
        assert sorted(case for part in parts for case in part) == list(range(11))


def rows(folder: Path) -> set[Value]:
    return set(from_csv((folder / "rows.csv").read_text()))


def test_merged_parts_are_the_whole_report(h2o: Run, tiny_bundle: Path, tmp_path: Path) -> None:
    def report(folder: Path, *flags: object) -> None:
        done = h2o("eval", "report", tiny_bundle, "-o", folder, *FLAGS, *flags)
        assert (done.returncode, without_progress(done.stderr)) == (0, b"")

    whole, first, second, merged = (tmp_path / name for name in ("whole", "first", "second", "merged"))
    report(whole)
    report(first, "--shard", "1/2")
    report(second, "--shard", "2/2")
    jobs = [{value.job for value in rows(folder)} for folder in (first, second)]
    assert min(map(len, jobs)) > 0
    assert not jobs[0] & jobs[1]

    done = h2o("eval", "merge", first, second, "-o", merged)
    assert done.returncode == 0, done.stderr
    assert rows(merged) == rows(whole)
    before = (merged / "rows.csv").stat().st_mtime_ns
    report(merged, "--resume")
    assert (merged / "report.html").is_file()
    assert (merged / "rows.csv").stat().st_mtime_ns == before, "nothing is measured again"

    longer = tmp_path / "longer"
    report(longer, "--shard", "2/2", "--from", 100)
    other = tmp_path / "other"
    for parts, words in (
        ((first, longer), b"another extent"),
        ((first, tmp_path / "none"), b"cannot be read"),
        ((first, second), b"has a run already"),
    ):
        out = merged if b"already" in words else other
        done = h2o("eval", "merge", *parts, "-o", out)
        assert done.returncode == 1
        assert words in done.stderr
    assert not other.exists()


@pytest.mark.parametrize("shard", ["0/3", "4/3", "1", "1/0", "-1/3", "1/3/5", "a/b"])
def test_parts_that_there_are_not(h2o: Run, tiny_bundle: Path, tmp_path: Path, shard: str) -> None:
    done = h2o("eval", "report", tiny_bundle, "-o", tmp_path / "out", "--shard", shard)
    assert done.returncode == 2
    assert b"is no part such as 1/3" in done.stderr
