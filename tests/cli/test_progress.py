"""Long work in a log: a line from time to time, and none about short work."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from h2o_cli import progress
from h2o_cli.progress import stages, told_in_log
from h2o_cli.run.command import main


def wait_for(capsys: pytest.CaptureFixture[str], words: str) -> str:
    """What standard error got until then."""
    found, end = "", time.monotonic() + 60
    while words not in found and time.monotonic() < end:
        time.sleep(0.001)
        found += capsys.readouterr().err
    return found


def test_stages_of_long_work_are_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "EVERY", 0.01)
    with stages("checkpoint", 3, 8) as stage:
        assert wait_for(capsys, "\n") == "0:00:00 checkpoint\n"
        stage("layer [0]")
        assert wait_for(capsys, "\n") == "0:00:00 1 of 3: layer [0]\n"
        time.sleep(0.1)
        assert capsys.readouterr().err == "", "a stage that goes on is told once a minute"
        monkeypatch.setattr(progress, "UNCHANGED", 0.0)
        assert "1 of 3" in wait_for(capsys, "\n")
        monkeypatch.setattr(progress, "UNCHANGED", 60.0)
        stage("layer 1")
        stage("layer 2")
    assert capsys.readouterr().err.endswith(" 3 of 3: layer 2\n"), "the end is told"


def test_what_is_left_is_told_by_the_mean_of_earlier_stages(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([0.0, 0.0, 30.0, 60.0, 60.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(times))
    with stages("checkpoint", 6, 8, lines=True) as stage:
        stage("layer 0")
        stage("layer 1")
    assert capsys.readouterr().err.splitlines()[-1].endswith(" 2 of 6: layer 1, about 5 minutes left")


def test_short_work_has_no_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with stages("checkpoint", 2, 8) as stage:
        stage("layer 0")
    with told_in_log(lambda: "reading"):
        pass
    assert capsys.readouterr().err == ""


def test_a_long_prompt_is_told_in_a_log(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = [str(tiny_bundle), "-n", "1", "-p", "word " * 2000]
    monkeypatch.setattr(progress, "EVERY", 0.001)
    lines = CliRunner().invoke(main, arguments).stderr.splitlines()
    assert len(lines) > 1
    assert all("prompt: " in line and line.endswith(" tokens") for line in lines)
    done, _, total, _ = lines[-1].split("prompt: ")[1].split()
    assert done == total
