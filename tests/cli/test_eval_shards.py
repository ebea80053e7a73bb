"""A report that several machines share: a case or a text is read once, and the parts together are the whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.conftest import Run
from tests.cli.progress_lines import without_progress
from tests.conftest import EXAMPLE

from h2o_cli.eval.chat_frame import ChatFrame
from h2o_cli.eval.contestants import Contestant, Kind
from h2o_cli.eval.folder import ROWS, RUN, TOKENS, RunFolder
from h2o_cli.eval.plan import BEGINNING, Extent, Measurer
from h2o_cli.eval.texts import Document
from h2o_cli.eval.values import COLUMNS, Value, from_csv
from h2o_cli.shard import Shard
from h2o_runtime import Generator
from h2o_runtime.errors import OutputError
from h2o_runtime.policies.prefill import Full, Query
from h2o_runtime.text import Tokenizer

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


def test_a_stretch_is_neighbouring_cases_of_a_like_cost() -> None:
    cases = "aabbccdd"
    assert [Shard(number, 2).stretch(cases, [5] * 8) for number in (1, 2)] == [tuple("aabb"), tuple("ccdd")]
    assert [Shard(number, 2).stretch("abc", [1, 1, 2]) for number in (1, 2)] == [("a", "b"), ("c",)]
    assert Shard(1, 2).stretch("", []) == ()
    costs = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
    for count in (1, 2, 3, 7, 20):
        parts = [Shard(number, count).stretch(range(11), costs) for number in range(1, count + 1)]
        assert [case for part in parts for case in part] == list(range(11))


def measurer_of(generator: Generator, ids: Any, names: str) -> Measurer:
    """Of texts that are `ids`, read under full attention and one rule."""
    found = (
        Contestant("full", Full(), Kind.TRUTH),
        Contestant("local", Query(), Kind.RULE),
    )
    extent = Extent(len(ids), len(ids) // 4, 0, ("perplexity",), (), (), 1, "end", ())
    documents = tuple(Document(name, ids) for name in names)
    return Measurer(generator, Tokenizer.load(EXAMPLE), documents, found, extent, ChatFrame())


def test_each_part_reads_texts_of_its_own(tiny_generator: Generator, heldout_ids: Any) -> None:
    """Full attention's results of a text are needed beside every rule: in one part, if there are texts enough."""
    measurer = measurer_of(tiny_generator, heldout_ids[:96], "abcd")
    parts = [[job.title for job in measurer.jobs(shard=Shard(number, 2))] for number in (1, 2)]
    assert parts == [
        ["read a full", "read a local", "read b full", "read b local"],
        ["read c full", "read c local", "read d full", "read d local"],
    ]


def test_the_model_shows_on_a_short_text_whether_it_is_trained(
    tiny_generator: Generator, heldout_ids: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    each = tiny_generator.each_logits
    monkeypatch.setattr(
        tiny_generator, "each_logits", lambda ids, policy: (read.append(len(ids)), each(ids, policy))[1]
    )
    ids = np.resize(heldout_ids, 2 * BEGINNING)
    assert measurer_of(tiny_generator, ids, "a").sanity().problems == ()
    assert measurer_of(tiny_generator, ids[:96], "a").sanity().problems == ()
    assert read == [BEGINNING, 96]


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
    texts = [{value.text for value in rows(folder)} for folder in (first, second)]
    assert texts[0] & texts[1] == {"needle"}

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


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        (ROWS, ",".join(COLUMNS) + "\nj,c,k,s,loss," + "t" * 200_000 + ",1,,1.0\n", "field larger than"),
        (ROWS, ",".join(COLUMNS) + "\nj,c\n", "cut off"),
        (TOKENS, "[]", "holds no object"),
        (TOKENS, '{"seen": [1]}', "does not say which contestant"),
        (RUN, "[]", "holds no object"),
    ],
)
def test_a_damaged_run_is_told(tmp_path: Path, name: str, content: str, says: str) -> None:
    (tmp_path / RUN).write_text("{}")
    assert RunFolder.read(tmp_path).values == []
    (tmp_path / name).write_text(content)
    with pytest.raises(OutputError, match=f"its run cannot be read .*{says}"):
        RunFolder.read(tmp_path)


@pytest.mark.parametrize("shard", ["0/3", "4/3", "1", "1/0", "-1/3", "1/3/5", "a/b"])
def test_parts_that_there_are_not(h2o: Run, tiny_bundle: Path, tmp_path: Path, shard: str) -> None:
    done = h2o("eval", "report", tiny_bundle, "-o", tmp_path / "out", "--shard", shard)
    assert done.returncode == 2
    assert b"is no part such as 1/3" in done.stderr
