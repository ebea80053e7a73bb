"""Misuses of commands. Each must give one sentence that names the culprit and the right exit code, without a
traceback, and leave nothing behind.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from tests.cli.conftest import Run
from tests.cli.progress_lines import without_stages

NAME = "llama-g2-d64-llama3"
LONG = "a" * 300  # no file system takes such a name

Ran = tuple[int, str, str]  # the exit code and both outputs


class Place:
    """A folder for one misuse, with a sound checkpoint `ck` and a sound bundle `bundle` to be spoilt."""

    def __init__(self, folder: Path, checkpoint: Path, bundle: Path) -> None:
        self.folder = folder
        self.ck = shutil.copytree(checkpoint, folder / "ck")
        self.bundle = shutil.copytree(bundle, folder / "bundle")
        self.out = folder / "out"

    def configure(self, **changes: Any) -> Place:
        path = self.ck / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
        return self

    def write(self, name: str, content: str | bytes) -> Place:
        path = self.folder / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return self

    def truncate(self, name: str) -> Place:
        path = self.folder / name
        os.truncate(path, path.stat().st_size // 2)
        return self

    def remove(self, name: str) -> Place:
        (self.folder / name).unlink()
        return self

    def manifest(self, change: Callable[[Any], object]) -> Place:
        manifest = json.loads((self.bundle / "manifest.json").read_text())
        change(manifest)
        return self.write("bundle/manifest.json", json.dumps(manifest))

    def resize(self, name: str) -> Place:
        """The manifest has the size that the file has now."""
        size = (self.bundle / name).stat().st_size
        return self.manifest(lambda m: m["files"][name].update(bytes=size))

    def weights(self, change: Callable[[dict[str, Any]], object]) -> Place:
        tensors = load_file(self.ck / "model.safetensors")
        change(tensors)
        save_file(tensors, self.ck / "model.safetensors", metadata={"format": "pt"})
        return self

    def torch_file(self) -> Place:
        (self.ck / "model.safetensors").rename(self.ck / "pytorch_model.bin")
        return self

    def full_output(self) -> Place:
        self.out.mkdir()
        return self.write("out/thesis.txt", "the only copy")


# The change to the folder, the arguments after the command's name (with names of the folder's files in
# braces), the exit code, and the expected message.
Misuse = tuple[Callable[[Place], object], tuple[Any, ...], int, str]


def run_apart(h2o: Run, command: str, words: list[Any]) -> Ran:
    """In a process of its own, which tells of its stages where they take long."""
    done = h2o(command, *words, timeout=200)
    return done.returncode, done.stdout.decode(), without_stages(done.stderr).decode()


def assert_one_sentence(misuse: Misuse, place: Place, run: Callable[[list[Any]], Ran]) -> None:
    """`run` gets the arguments after the command's name."""
    spoil, args, code, sentence = misuse
    names = {"folder": place.folder, "ck": place.ck, "bundle": place.bundle, "out": place.out}
    spoil(place)
    before = _snapshot(place.folder)
    result, shown, message = run([word.format(**names) if isinstance(word, str) else word for word in args])
    assert "Traceback" not in message
    assert sentence.format(**names) in " ".join(message.split()), message
    assert (result, shown) == (code, "")
    assert message.startswith("error: ")
    helps = [line.startswith("help: ") and line.endswith(" --help") for line in message.splitlines()[1:]]
    assert helps == ([True] if code == 2 else [])
    assert _snapshot(place.folder) == before


def _snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
    }
