"""h2o-eval on the example bundle: what it prints and draws, and what it refuses."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests import bundles
from tests.cli.conftest import Run
from tests.cli.progress_lines import without_progress

from h2o_cli.eval.pictures import PICTURES

pytestmark = pytest.mark.timeout(600)
RULE = "h2o score=query chunk_size=64 local=8 heavy=24 dense_tail=0"
MORE = RULE.replace("heavy=24", "heavy=48")
SMALL = ("-n", 256, "--prefill", RULE, "-t", 1)


def small_but(*flags: object) -> tuple[object, ...]:
    """SMALL without the options that `flags` give."""
    pairs = zip(SMALL[::2], SMALL[1::2], strict=True)
    return (*(word for pair in pairs if pair[0] not in flags for word in pair), *flags)


FEW = ("--decode-tokens", 8, "--baselines", "oracle,local")


def test_the_comparison_as_json(h2o: Run, tiny_bundle: Path, tmp_path: Path) -> None:
    text = tmp_path / "mine.txt"
    text.write_text((Path(__file__).parents[2] / "README.md").read_text())
    flags = (*SMALL, *FEW, "--text", text, "--beside", "heavy=48", "--json")
    done = h2o("eval", tiny_bundle, *flags)
    assert (done.returncode, without_progress(done.stderr)) == (0, b"")
    document: dict[str, Any] = json.loads(done.stdout)
    rows = {row["contestant"]: row for row in document["summary"]}
    assert list(rows) == ["full", RULE, MORE, "oracle", "local"]
    assert done.stderr.startswith(
        f"measuring {RULE} beside full, {MORE}, oracle, local\ntexts of 264 tokens: mine.txt\n".encode()
    )
    assert document["sanity"]["problems"] == []
    assert [one["name"] for one in document["texts"]] == ["mine.txt"]
    assert rows["full"]["increase"] == 0.0
    assert rows[RULE]["increase"] == pytest.approx(rows[RULE]["perplexity"] / rows["full"]["perplexity"] - 1)
    assert rows["oracle"]["recall"] > rows[RULE]["recall"] > rows["local"]["recall"]
    assert rows[MORE]["divergence"] < rows["local"]["divergence"]
    assert rows["full"]["recall"] is None
    assert rows["full"]["decoded_increase"] == 0.0 < rows[RULE]["decoded_divergence"]
    assert (rows[RULE]["texts"], rows[RULE]["decoded_error"]) == (1, None)
    at = [one for one in document["values"] if one["measure"] == "loss_at" and one["contestant"] == "full"]
    assert [int(one["place"]) for one in at] == list(range(0, 256, 16))


def test_the_table_and_a_missed_tolerance(h2o: Run, tiny_bundle: Path) -> None:
    rule = ("--prefill", "h2o chunk_size=64 local=1 heavy=0 dense_tail=0")
    measured = ("--metrics", "perplexity,needle", "--needles", "depths=0.5 seeds=1", "--baselines", "none")
    flags = (*small_but(*rule), *measured)
    done = h2o("eval", *flags, "--tolerance", 0.001, tiny_bundle)
    text = done.stdout.decode()
    for word in ("full", "h2o", "in prompt", "of 1", "needles", "score=query", "python-manual-2"):
        assert word in text
    assert "recall" not in text.split("─")[0]
    assert done.returncode == 3
    begin = b"texts of 256 tokens: python-manual-1, python-manual-2 (--text FILE takes your own)\n"
    assert begin in done.stderr
    assert re.fullmatch(
        rb"error: h2o .* raises the perplexity by .*%, and 0.001 % are allowed\n",
        without_progress(done.stderr),
    )


def test_an_untrained_model_is_not_praised(h2o: Run, shared_folder: Path) -> None:
    _, bundle = bundles.named(shared_folder, "llama-g2-d64-llama3")
    flags = (*SMALL, "--metrics", "perplexity", "--baselines", "none", "--tolerance", 1000)
    done = h2o("eval", bundle, *flags)
    assert "This model looks untrained" in done.stdout.decode()
    assert done.returncode == 3
    assert f"nothing can be said of {RULE}".encode() in done.stderr


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_changed_settings_and_pictures(h2o: Run, tiny_bundle: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    rule = ("--prefill", "h2o score=window chunk_size=64 local=8 heavy=24 window=4 dense_tail=0")
    flags = (*small_but(*rule), *FEW, "--metrics", "all", "--needles", "lengths=192,256 depths=0.5 seeds=1")
    done = h2o("eval", tiny_bundle, *flags, "--ablate", "--pictures", folder, timeout=500)
    assert (done.returncode, without_progress(done.stderr)) == (0, b"")
    assert re.search(rb"and \d+ times with one setting changed\n", done.stderr)
    assert b"heavy=12" in done.stdout
    assert f"{folder}: {', '.join(PICTURES)}" in done.stdout.decode()
    assert sorted(path.name for path in folder.iterdir()) == sorted(PICTURES)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in folder.iterdir())
    (folder / "recall.png").write_text("the only copy")
    refused = h2o("eval", tiny_bundle, *flags, "--pictures", folder)
    assert (refused.returncode, refused.stdout) == (1, b"")
    assert b"recall.png: is a file, but no PNG picture" in refused.stderr


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (("-n", 250_000), 1, "Python's manual has"),
        (("--suite", "small", "--text", "a.txt"), 2, "--suite has no effect with --text"),
        (("--suite", "small texts=99"), 2, "has 23 texts: lower texts of --suite"),
        (("--from", 300), 2, "--from position 300 is not within a text of 256 tokens"),
        (("--decode-tokens", 999_999_999), 2, "leave no room for a text"),
        (
            ("--prefill", "full"),
            2,
            "full has nothing to measure: full attention is what rules are compared with",
        ),
        (("--metrics", "speed"), 2, "'speed' is no metric: choose from decode, perplexity"),
        (("--metrics", "needle", "--needles", "depths=2"), 2, "depths must be from 0 to 1"),
        (("-c", 300), 2, "--ctx-size is 300, and 512 tokens are needed"),
    ],
)
def test_misuse(h2o: Run, tiny_bundle: Path, flags: tuple[object, ...], code: int, words: str) -> None:
    done = h2o("eval", tiny_bundle, *small_but(*flags))
    assert (done.returncode, done.stdout) == (code, b"")
    assert words in " ".join(done.stderr.decode().split())
    assert "Traceback" not in done.stderr.decode()


def test_a_text_that_is_too_short(h2o: Run, tiny_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("A few words.")
    done = h2o("eval", tiny_bundle, "--pictures", tmp_path / "out", "--text", tmp_path / "note.txt", *SMALL)
    assert done.returncode == 1
    assert re.match(rb"error: note\.txt has \d tokens and 512 are needed: give a longer text", done.stderr)
    assert not (tmp_path / "out").exists()
