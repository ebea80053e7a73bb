"""--chat-template: a file in place of the model's own chat template."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Run
from tests.reference.checkpoints import EXAMPLE

from h2o_runtime.text import ChatTemplate

TEMPLATE = "{{ messages[-1].content }}, upon a time"  # without what the example's own adds


@pytest.fixture
def template(tmp_path: Path) -> Path:
    file = tmp_path / "own.jinja"
    file.write_text(TEMPLATE)
    return file


def test_a_run_takes_it(h2o: Run, tiny_bundle: Path, template: Path) -> None:
    flags = ("-n", 4, "--json", "--temperature", 0)
    plain = json.loads(h2o("run", tiny_bundle, "-p", "Once, upon a time", *flags).stdout)
    done = h2o("run", tiny_bundle, "--chat", "-p", "Once", "--chat-template", template, *flags)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tokens"] == plain["tokens"]
    done = h2o("run", tiny_bundle, "-p", "Once", "--chat-template", template, *flags)
    assert done.returncode == 2
    assert b"--chat-template has no effect without --chat" in done.stderr


@pytest.mark.slow
def test_an_export_keeps_it(h2o: Run, template: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    done = h2o("export", EXAMPLE, "-o", bundle, "--no-validate", "--chat-template", template)
    assert done.returncode == 0, done.stderr
    assert ChatTemplate.load(bundle).texts["default"] == TEMPLATE
    assert "chat_template.jinja" in json.loads((bundle / "manifest.json").read_text())["files"]


def test_one_that_cannot_be_read_is_refused(h2o: Run, tiny_bundle: Path, template: Path) -> None:
    commands = (
        ("run", tiny_bundle, "--chat", "-p", "Once"),
        ("export", EXAMPLE, "-o", template.with_name("bundle")),
        ("serve", tiny_bundle, "--port", 0),
    )
    for text, told in (
        ("{% if %}", f"{template}: the chat template "),
        ("\xff", f"{template} is not valid UTF-8"),
    ):
        template.write_text(text, encoding="latin-1")
        for command in commands:
            done = h2o(*command, "--chat-template", template)
            assert (done.returncode, done.stdout) == (1, b"")
            assert told in done.stderr.decode()
            assert done.stderr.count(b"error: ") == 1
            assert b"Traceback" not in done.stderr
