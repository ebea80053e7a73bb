"""No command writes into a bundle: every place is checked before any work, and told as it was given."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from tests.cli.test_effects import COMMANDS, by_name, line

from h2o_cli.effects import flag_of
from h2o_cli.output_path import OutputPath
from h2o_cli.usage import Failure

# Paths that are only read. Any other is a place that a command writes to.
INPUTS = {
    *("bundle", "prompt_file", "file", "text", "texts", "api_key_file", "load_cache"),
    *("checkpoint", "openvino_model", "folder", "folders", "adapter", "chat_template"),
}
OUTPUTS = [
    (name, str(one.name))
    for name, command in COMMANDS.items()
    for one in command.params
    if isinstance(one.type, click.Path) and one.name not in INPUTS
]


def test_what_is_read_may_be_in_a_bundle() -> None:
    read = [one for command in COMMANDS.values() for one in command.params if one.name in INPUTS]
    assert not any(isinstance(one.type, OutputPath) for one in read)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    (tmp_path / "bundle" / "onnx").mkdir(parents=True)
    for name in ("manifest.json", "onnx/dense_00.onnx"):
        (tmp_path / "bundle" / name).write_text("{}")
    (tmp_path / "link").symlink_to("bundle")
    return tmp_path / "bundle"


@pytest.mark.parametrize(("name", "parameter"), OUTPUTS)
@pytest.mark.parametrize("place", ["bundle", "bundle/onnx/new", "link", "link/new"])
def test_a_bundle_is_no_place_for_output(
    name: str, parameter: str, place: str, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = COMMANDS[name]
    one = by_name(command, parameter)
    assert isinstance(one.type, click.Path)
    replaced = (name, parameter, "/" in place) == ("export", "output", False)  # a bundle, by another one
    if replaced or not (one.type.dir_okay or "/" in place):
        return
    monkeypatch.chdir(bundle.parent)
    with pytest.raises(Failure) as refused:
        command.make_context(name, line(command, {parameter: place}))
    of = "is a bundle" if "/" not in place else f"is inside the bundle {bundle}"
    assert refused.value.message == f"{place}: {of}; name a place outside of it", flag_of(one)
