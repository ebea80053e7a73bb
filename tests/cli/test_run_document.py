"""h2o-run's document, the question about it, and what is told first where both are missing."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
from tests.cli.conftest import Run

from h2o_cli.run import prompt
from h2o_cli.run.prompt import PromptSource, is_piped


def test_a_question_follows_its_document(h2o: Run, tiny_bundle: Path, tmp_path: Path) -> None:
    def answer(*prompt: object, given: bytes = b"") -> Any:
        done = h2o("run", tiny_bundle, *prompt, "-n", 3, "--json", input=given)
        assert (done.returncode, done.stderr) == (0, b"")
        return json.loads(done.stdout)

    file = tmp_path / "document.txt"
    file.write_text("One.\nTwo.\n")
    expected = answer("-p", "One.\nTwo.\n\nWhich?")
    for found in (
        answer("-f", file, "-p", "Which?"),
        answer("-p", "Which?", "-", given=file.read_bytes()),
        answer("-p", "Which?", given=file.read_bytes()),
    ):
        assert found["tokens"] == expected["tokens"]
        assert found["timings"]["prompt_n"] == expected["timings"]["prompt_n"]


def test_a_missing_bundle_is_told_before_a_missing_prompt(h2o: Run, tmp_path: Path) -> None:
    done = h2o("run", tmp_path / "none")
    assert done.returncode != 0
    assert b"none" in done.stderr
    assert b"no prompt" not in done.stderr


def source(prompt: str | None = "Which?", file: str | None = None) -> PromptSource | None:
    return PromptSource.of(prompt, file, None, piped=is_piped())


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], None]]:
    """Makes a stream the standard input."""
    with ExitStack() as streams:
        yield lambda stream: monkeypatch.setattr(sys, "stdin", streams.enter_context(stream))


def test_a_file_that_no_flag_names_is_the_document(given: Any, tmp_path: Path) -> None:
    file = tmp_path / "document.txt"
    file.write_text("One.\nTwo.\n")
    given(file.open())
    found = source()
    assert found is not None
    assert found.read() == "One.\nTwo.\n\nWhich?"
    other = source(file=str(file))
    assert other is not None
    assert not other.offered, "there is a document"


def test_the_list_of_a_loop_is_no_document(given: Any, tmp_path: Path) -> None:
    file = tmp_path / "list.txt"
    file.write_text("first\nsecond\n")
    stream = file.open()
    os.lseek(stream.fileno(), 6, os.SEEK_SET)  # as `while read line` leaves it
    given(stream)
    found = source()
    assert found is not None
    assert found.read() == "Which?"
    assert stream.read() == "second\n"


@pytest.mark.parametrize("sent", ["", "\n"])
def test_a_pipe_without_text_is_no_document(given: Any, sent: str) -> None:
    read, write = os.pipe()
    os.write(write, sent.encode())
    os.close(write)
    given(os.fdopen(read))
    found = source()
    assert found is not None
    assert found.read() == "Which?"


def test_an_open_pipe_that_sends_nothing_is_left_out(
    given: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(prompt, "PATIENCE", 0.01)
    read, write = os.pipe()
    given(os.fdopen(read))
    found = source()
    assert found is not None
    assert found.read() == "Which?"
    assert "sent nothing in 0.01 seconds: it is left out" in caplog.text
    os.close(write)


def test_a_slow_pipe_is_waited_for(given: Any) -> None:
    read, write = os.pipe()
    given(os.fdopen(read))

    def send() -> None:
        os.write(write, b"One.")
        os.close(write)

    Timer(0.1, send).start()
    found = source()
    assert found is not None
    assert found.read() == "One.\n\nWhich?"


@pytest.mark.parametrize("device", ["/dev/null", "terminal"])
def test_a_device_is_never_waited_for(given: Any, device: str) -> None:
    given(os.fdopen(os.open(device, os.O_RDONLY) if device == "/dev/null" else os.openpty()[1]))
    assert source() == PromptSource(None, "Which?")
