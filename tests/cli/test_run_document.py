"""h2o-run's document, the question about it, and what is told first where both are missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.cli.conftest import Run


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
    ):
        assert found["tokens"] == expected["tokens"]
        assert found["timings"]["prompt_n"] == expected["timings"]["prompt_n"]


def test_a_missing_bundle_is_told_before_a_missing_prompt(h2o: Run, tmp_path: Path) -> None:
    done = h2o("run", tmp_path / "none")
    assert done.returncode != 0
    assert b"none" in done.stderr
    assert b"no prompt" not in done.stderr
