"""Every command of ours in a code block of the documentation runs on the example model.

What needs more than that model, a CPU and some seconds is only parsed (tests/test_docs.py), by a rule of NOT_HERE
that says why. Programs of others are named in NOT_OURS. A rule that no command needs is an error.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import forked
from tests.test_docs import OTHERS, PAGES, PYTHON, ROOT, SCRIPTS, Command, commands

EXAMPLE = ROOT / "examples" / "tiny-llama"
MODULES = {"h2o-run": "run.command", "h2o-eval": "eval.command", "h2o-bench": "bench.command"}
SECONDS = 300  # for one command, on a busy machine
TEXT = (EXAMPLE / "heldout.txt").read_text(encoding="utf-8")

# Why a command of ours is parsed, and not run.
NOT_HERE = {
    r"^h2o-serve ": "runs until it is stopped; tests/server starts it with these options",
    r"^h2o-bench ": "measures for minutes, some of it other systems",
    r"^h2o-eval (BUNDLE$|bundle --text mine.txt$|.*--(suite|tolerance|beside|ablate))": "measures for minutes",
    r"^h2o-export .* --(weights|dtype)": "takes minutes; tests/cli/test_export.py has each format",
    r"--adapter ": "needs an adapter; tests/export/test_checkpoint_lora.py merges one",
    r"^h2o-compare ": "takes a minute; tests/cli/test_compare.py runs it",
    r"meta-llama/|~/models|DeepSeek|smollm2|\.gguf|\blite\b|out/qwen": "needs another model than the example",
    r"--backend tensorrt|--device cuda|--target (?!.*--dry-run)": "needs a GPU, or TensorRT",
    r"=bfloat16": "needs a processor with bfloat16",
    r"-c (100000|32768)": "needs a longer context than the example has",
}
# Why a program of others is not started.
SYSTEM, NETWORK, DEVICE = "changes the system", "needs a network", "is on a Jetson, or beside an NVIDIA GPU"
NOT_OURS = {
    **dict.fromkeys((".", "export", "cp", "install", "systemctl", "useradd", "apt", "openssl"), SYSTEM),
    **dict.fromkeys(("pip", "make", "claude", "curl", "rsync", "docker"), NETWORK),
    **dict.fromkeys(("nvcc", "nvpmodel", "jetson_clocks", "tegrastats", "trtexec", "cat"), DEVICE),
    **dict.fromkeys(("cmake", "ctest", "pytest", *PYTHON), "builds, tests or measures for minutes"),
}

SHOWN = [command for page in PAGES for command in commands(page) if not command.inline]
OURS = [command for command in SHOWN if command.words[0] in SCRIPTS]


def reasons(command: Command) -> list[str]:
    line = " ".join(command.words)
    return [rule for rule in NOT_HERE if re.search(rule, line)]


def to_run() -> Iterator[object]:
    """By page, in the order of the page: a command may read what the one before it wrote."""
    for page in dict.fromkeys(command.page for command in OURS):
        lines = [command for command in OURS if command.page == page and not reasons(command)]
        if lines:
            yield pytest.param(lines, id=page)


@pytest.fixture
def folder(tiny_bundle: Path, tmp_path: Path) -> Path:
    """What a reader of the page has: a checkpoint, a bundle, and texts."""
    (tmp_path / "examples").mkdir()
    for name in ("CHECKPOINT", "examples/tiny-llama"):
        (tmp_path / name).symlink_to(EXAMPLE)
    for name in ("bundle", "BUNDLE"):
        (tmp_path / name).symlink_to(tiny_bundle)
    for name in ("report.txt", "question.txt"):
        (tmp_path / name).write_text(TEXT[:3000], encoding="utf-8")
    (tmp_path / "report_and_question.txt").write_text(TEXT[:3200], encoding="utf-8")
    (tmp_path / "mine.txt").write_text(TEXT, encoding="utf-8")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("lines", list(to_run()))
def test_the_commands_of_a_page_run(lines: list[Command], folder: Path) -> None:
    for command in lines:
        name, *words = command.words
        if name == "h2o-export" and words[-1] == "bundle":
            (folder / "bundle").unlink()  # the reader's first one
        module = MODULES.get(name, name.removeprefix("h2o-"))
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, open(os.devnull) as nothing:
            process = forked.commands(module).start(
                module,
                list(words),
                nothing.fileno(),
                out.fileno(),
                err.fileno(),
                f"import os; os.chdir({str(folder)!r})",
            )
            code = process.wait(SECONDS)
            err.seek(0)
            assert code == 0, f"{command}\n{err.read().decode()}"
    shutil.rmtree(folder)


def test_every_reason_is_needed() -> None:
    used = {rule for command in OURS for rule in reasons(command)}
    assert used == set(NOT_HERE)


def test_every_program_of_others_says_why_it_is_not_started() -> None:
    assert NOT_OURS.keys() >= {command.words[0] for command in SHOWN} - set(SCRIPTS)
    assert NOT_OURS.keys() <= OTHERS.keys() | PYTHON | {"pip", "make", "cmake", "openssl"}
