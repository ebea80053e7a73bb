"""The code and the commands of docs/adding_a_policy.md run, in the order of the page."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:  # Python 3.10 has no parser of its own, pytest brings one
    import tomli as tomllib

PAGE = (Path(__file__).parents[1] / "docs" / "adding_a_policy.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory, tiny_bundle: Path) -> Path:
    """The page's policy as an installed package, beside `out/tiny-llama`."""
    folder = tmp_path_factory.mktemp("package")
    (folder / "streaming.py").write_text(blocks("python")[0])
    (folder / "out").mkdir()
    (folder / "out" / "tiny-llama").symlink_to(tiny_bundle)
    groups = tomllib.loads(blocks("toml")[0])["project"]["entry-points"]
    metadata = folder / "streaming-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: streaming\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text(
        "".join(
            f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
            for group, points in groups.items()
        )
    )
    return folder


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "120"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_policy_is_short() -> None:
    assert len(blocks("python")[0].splitlines()) <= 60


def test_the_check_passes_and_texts_are_values(package: Path) -> None:
    text, value = re.findall(r"PREFILL\.read\((.*?)\)` is `(.*?)`", PAGE)[0]
    setup = "from h2o_runtime.policies.prefill import PREFILL; from streaming import Streaming"
    texts = f"{setup}; assert PREFILL.read({text}) == {value}; assert str({value}) == {text}"
    run(package, "-c", f"{blocks('python')[1]}\n{texts}")


def test_the_commands_know_it(package: Path) -> None:
    """One after the other in one process."""
    program, lines = "import sys", blocks("console")[0].splitlines()
    for name, *arguments in map(shlex.split, lines):
        (point,) = entry_points(group="console_scripts", name=name)
        program += f"""
from {point.module} import {point.attr} as main
sys.argv = {[name, *arguments]}
try:
    main()
except SystemExit as end:
    assert not end.code
print("\f")
"""
    *printed, _ = run(package, "-c", program).split("\f")
    assert len(printed) == len(lines)
    assert all("streaming" in each or "first tokens and a window" in each for each in printed)
