"""h2o-run --save-cache and --load-cache: one command goes on where another ended."""

from __future__ import annotations

import json
import os
import signal
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Run, Start, read_until, work_for
from tests.conftest import EXAMPLE

from h2o_runtime.sessions.saved import SavedSession
from h2o_runtime.text import Tokenizer

PROMPT = "The module defines a class that reads the"
FLAGS = ("-n", 6, "--ignore-eos", "-c", 600, "--prefill", "full")
pytestmark = pytest.mark.timeout(600)


def test_of_the_next_prompt_only_what_is_new_is_read(h2o: Run, tiny_bundle: Path, tmp_path: Path) -> None:
    file = tmp_path / "session"
    first = h2o("run", tiny_bundle, "-p", PROMPT, *FLAGS, "--save-cache", file)
    assert (first.returncode, first.stderr) == (0, b"")
    assert [path.name for path in tmp_path.iterdir()] == ["session"]
    assert file.stat().st_mode & 0o777 == 0o600
    both = ("--load-cache", file, "--save-cache", file, "--json")
    again = json.loads(h2o("run", tiny_bundle, "-p", PROMPT, *FLAGS, *both).stdout)
    assert again["answer"] + "\n" == first.stdout.decode()
    assert again["timings"]["prompt_n"] <= 1 < again["timings"]["cache_n"]
    longer = json.loads(h2o("run", tiny_bundle, "-p", PROMPT + " file and then", *FLAGS, *both).stdout)
    assert longer["timings"]["cache_n"] > 5
    assert longer["timings"]["prompt_n"] < 8


def test_what_cannot_be_is_one_sentence(h2o: Run, tiny_bundle: Path, tmp_path: Path) -> None:
    file, damaged = tmp_path / "session", tmp_path / "damaged"
    assert h2o("run", tiny_bundle, "-p", PROMPT, *FLAGS, "--save-cache", file).returncode == 0
    damaged.write_bytes(file.read_bytes()[:-100])
    fifo, sparse = tmp_path / "fifo", tmp_path / "sparse"
    os.mkfifo(fifo)
    with zipfile.ZipFile(sparse, "w") as zipped:  # its directory is said to have 4 GiB
        zipped.writestr("about.npy", b"")
    end = bytearray(sparse.read_bytes()[-22:])
    end[12:16] = (0xFFFFFFF0).to_bytes(4, "little")
    with sparse.open("r+b") as holes:
        holes.seek(1 << 33)
        holes.write(end)
    for flags, sentence in (
        (("--load-cache", tmp_path / "nothing"), "no such file"),
        (("--load-cache", damaged), "no saved session; without --load-cache the prompt is read again"),
        (("--load-cache", file, "--prefill", "h2o"), "saved under full"),
        (("--load-cache", file, "-c", 8), "raise --ctx-size to"),
        (("--save-cache", tmp_path), "is a folder"),
        (("--save-cache", tmp_path / "nowhere" / "file"), "a folder that exists"),
        (("--save-cache", "/dev/null"), "/dev/null: is a device"),
        (("--save-cache", damaged), "no saved session"),
        (("--save-cache", tiny_bundle / "manifest.json"), "is inside the bundle"),
        (("--load-cache", fifo), "is a FIFO"),
        (("--load-cache", "/dev/zero"), "/dev/zero: is a device"),
        (("--load-cache", sparse), "damaged, or no saved session"),
        (
            ("--save-cache", tmp_path / "new", "--cache", "evicting tokens=128"),
            "--save-cache writes whole sessions",
        ),
    ):
        usual = zip(FLAGS[3::2], FLAGS[4::2], strict=True)
        beside = (word for pair in usual if pair[0] not in flags for word in pair)
        done = h2o("run", tiny_bundle, "-p", PROMPT, *FLAGS[:3], *beside, *flags, timeout=60)
        assert done.returncode in (1, 2)
        assert done.stdout == b""
        assert sentence in done.stderr.decode()
        assert done.stderr.count(b"\n") <= 3  # what the cache evicts is told in two


def test_settings_are_those_of_the_loaded_session(h2o: Run, tiny_bundle: Path, tmp_path: Path) -> None:
    file = tmp_path / "session"
    assert h2o("run", tiny_bundle, "-p", PROMPT, *FLAGS, "--save-cache", file).returncode == 0
    again = h2o("run", tiny_bundle, "-p", PROMPT, *FLAGS[:-2], "--load-cache", file, "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["prefill"]["policy"] == "full"


# Ctrl-C, kill, a closed terminal


def interrupted(process: Any, number: int = signal.SIGINT) -> None:
    process.send_signal(number)
    process.communicate(timeout=300)
    assert process.returncode == 128 + number


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_while_answering_saves_prompt_and_answer(
    start_h2o: Start, tiny_bundle: Path, tmp_path: Path, number: int
) -> None:
    file = tmp_path / "session"
    flags = ("-n", 8000, "--ignore-eos", "--save-cache", file)
    process = start_h2o("run", tiny_bundle, "-p", PROMPT, *flags)
    process.stdout.read(20)
    interrupted(process, number)
    saved = SavedSession.open(file)
    prompt = Tokenizer.load(tiny_bundle).encode(PROMPT)
    assert saved.tokens[: len(prompt)].tolist() == prompt
    assert len(prompt) < len(saved.tokens) < 8000


def test_ctrl_c_while_reading_saves_what_was_read(
    h2o: Run, start_h2o: Start, tiny_bundle: Path, tmp_path: Path
) -> None:
    """And the same prompt goes on there. A file with more is not replaced by less."""
    text, file = tmp_path / "text", tmp_path / "session"
    whole = (EXAMPLE / "heldout.txt").read_text(encoding="utf-8")[:60_000]
    text.write_text(whole, encoding="utf-8")
    flags = ("-n", 1, "-c", 30_000, "--prefill", "full", "-v", "--save-cache", file)
    process = start_h2o("run", tiny_bundle, "-f", text, *flags)
    prompt = read_until(process.stderr, rb"prompt of (\d+) tokens")[1]
    work_for(process, 0.7)
    interrupted(process)
    tokens = SavedSession.open(file).tokens
    assert len(tokens) % 64 == 0
    assert 0 < len(tokens) < int(prompt)
    content = file.read_bytes()
    process = start_h2o("run", tiny_bundle, "-f", text, *flags, "--load-cache", file)
    read_until(process.stderr, rb"prompt of (\d+) tokens")
    interrupted(process)
    assert len(SavedSession.open(file).tokens) > len(tokens) or file.read_bytes() == content
    characters = len(Tokenizer.load(tiny_bundle).decode(tokens.tolist(), skip_special_tokens=True))
    text.write_text(whole[: characters + 200], encoding="utf-8")  # the rest would take seconds
    again = h2o("run", tiny_bundle, "-f", text, *flags, "--load-cache", file, "--json")
    assert json.loads(again.stdout)["timings"]["cache_n"] >= len(tokens)
