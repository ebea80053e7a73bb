"""Checkpoints in place of bundles: they are exported once, into the user's cache."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner
from tests.cli.conftest import Run, Start, read_until

from h2o_cli import kept_exports
from h2o_cli.bundle_argument import as_bundle
from h2o_cli.export import main as export
from h2o_runtime.bundles.manifest import Manifest
from h2o_runtime.errors import BackendError, BundleError, CheckpointError, H2OError, OutputError

pytestmark = pytest.mark.timeout(600)

PROMPT = ("-p", "Once", "-n", 2)
TAKEN = "a GGUF file, a Hugging Face folder and a hub's OWNER/NAME are taken too, and exported once"


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of what is kept, in a cache that is empty at first."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "h2o-edge" / "bundles"


def exporting_by(command: str) -> str:
    """Code for a process of its own: this cache, and what exports."""
    cache = {"XDG_CACHE_HOME": os.environ["XDG_CACHE_HOME"]}
    return (
        f"import os; os.environ.update({cache!r}); "
        f"from h2o_cli import kept_exports; kept_exports._COMMAND = {command!r}"
    )


@pytest.mark.slow
def test_the_first_start_exports_and_the_second_needs_no_exporter(
    h2o: Run, checkpoint: Path, kept: Path
) -> None:
    without = "; import sys; sys.modules.update(dict.fromkeys(['torch', 'transformers']))"
    missing = h2o("run", checkpoint, *PROMPT, code=exporting_by("") + without)
    assert (missing.returncode, missing.stdout) == (1, b"")
    assert missing.stderr.startswith(b"error: exporting needs more packages (No module named 'torch'): pip")
    assert missing.stderr.count(b"\n") == 1
    shared = f"from tests import traces; traces.share(); {kept_exports._COMMAND}"
    first = h2o("run", checkpoint, *PROMPT, "--json", code=exporting_by(shared))
    assert first.returncode == 0, first.stderr
    (bundle,) = kept.glob(f"*/{checkpoint.name}")
    assert first.stderr.decode().splitlines()[0] == f"{checkpoint} is exported once to {bundle}"
    second = h2o("run", checkpoint, *PROMPT, "--json", code=exporting_by("") + without)
    assert (second.returncode, second.stderr) == (0, b"")
    assert json.loads(second.stdout)["tokens"] == json.loads(first.stdout)["tokens"]
    manifest = Manifest.read(bundle)
    assert manifest.checkpoint.source == str(checkpoint)
    assert manifest.validation is not None


# In place of h2o-export, which loads PyTorch: it begins to write, and waits for a file.
SLOW_EXPORT = """
import shutil, sys, time
from pathlib import Path
import click
from h2o_cli.usage import Command
from h2o_export.staging import staged_folder

def export():
    with staged_folder(Path(sys.argv[-3]), force=False) as folder:
        while not Path({go!r}).exists():
            time.sleep(0.02)
        shutil.copytree({bundle!r}, folder, dirs_exist_ok=True)

Command("export", callback=export).main([])
"""


@pytest.fixture
def slow_export(tiny_bundle: Path, tmp_path: Path) -> str:
    return exporting_by(SLOW_EXPORT.format(go=str(tmp_path / "go"), bundle=str(tiny_bundle)))


def begun(process: Any, kept: Path) -> None:
    """Wait until it says that it exports, and has begun to write."""
    read_until(process.stderr, b"exported once to .*\n")
    while not list(kept.glob("*/.*.partial")):
        assert process.poll() is None
        time.sleep(0.02)


def test_after_a_kill_two_at_once_export_once(
    start_h2o: Start, slow_export: str, kept: Path, tmp_path: Path
) -> None:
    file = gguf(tmp_path / "model.gguf")
    killed = start_h2o("run", file, *PROMPT, code=slow_export)
    begun(killed, kept)
    children = psutil.Process(killed.pid).children(recursive=True)
    for process in (killed, *children):
        process.kill()
    psutil.wait_procs(children)
    first = start_h2o("run", file, *PROMPT, code=slow_export)
    begun(first, kept)
    second = start_h2o("run", file, *PROMPT, code=slow_export)
    read_until(second.stderr, f"waiting for another process, which exports {file}\n".encode())
    (tmp_path / "go").touch()
    assert second.communicate(timeout=500)[1] == b""
    assert first.communicate(timeout=100)[1] == b""
    assert (first.returncode, second.returncode) == (0, 0)
    (folder,) = (path for path in kept.iterdir() if path.name not in ("index", "locks"))
    assert [path.name for path in folder.iterdir()] == ["model"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_export_too(
    start_h2o: Start, slow_export: str, kept: Path, tmp_path: Path, number: signal.Signals
) -> None:
    process = start_h2o("run", gguf(tmp_path / "model.gguf"), *PROMPT, code=slow_export)
    begun(process, kept)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    told = process.communicate(timeout=100)[1].decode()
    assert (process.returncode, told.splitlines()[-1:]) == (128 + number, ["stopped"])
    assert children
    assert not any(child.is_running() for child in children)
    assert not list(kept.glob("*/.*.partial"))


def test_the_flags_of_exports_are_the_defaults() -> None:
    defaults = {max(option.opts, key=len): option.default for option in export.params}
    given = dict(zip(kept_exports.FLAGS[::2], kept_exports.FLAGS[1::2], strict=True))
    assert defaults["--dtype"] == given["--dtype"]
    assert defaults["--weights"].weights == given["--weights"]


@pytest.fixture
def exports(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Exports that began; each copies a bundle."""
    made: list[Path] = []

    def copy(word: str, bundle: Path, lock: int) -> None:
        made.append(bundle)
        shutil.copytree(tiny_bundle, bundle)

    monkeypatch.setattr(kept_exports, "_export", copy)
    return made


def gguf(path: Path, content: bytes = b"") -> Path:
    path.write_bytes(b"GGUF" + content)
    return path


def test_a_file_is_read_again_where_it_changed(
    exports: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = gguf(tmp_path / "model.gguf")
    bundle = as_bundle(str(file))
    with monkeypatch.context() as patched:
        patched.setattr(kept_exports, "file_sha256", lambda path: pytest.fail("the file was read"))
        assert as_bundle(str(file)) == bundle
    os.utime(file, (1, 1))
    assert as_bundle(str(file)) == bundle
    assert as_bundle(str(shutil.copy(file, tmp_path / "copy.gguf"))) == bundle
    assert exports == [bundle]
    gguf(file, b"!")
    assert as_bundle(str(file)) != bundle
    assert len(exports) == 2


def test_all_files_of_a_model_count(exports: list[Path], tmp_path: Path) -> None:
    shards = [gguf(tmp_path / f"big-0000{number}-of-00002.gguf") for number in (1, 2)]
    first = as_bundle(str(shards[1]))
    assert first == as_bundle(str(shards[0]))
    assert first.name == "big"
    gguf(shards[1], b"!")
    assert as_bundle(str(shards[0])) != first
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "README.md"):
        (folder / name).write_text("{}")
    first = as_bundle(str(folder))
    (folder / "README.md").write_text("changed")
    assert as_bundle(str(folder)) == first
    (folder / "chat_template.jinja").write_text("changed")
    assert as_bundle(str(folder)) != first


def test_a_file_that_changes_meanwhile_is_not_kept(
    tmp_path: Path, exports: list[Path], kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, copy = gguf(tmp_path / "model.gguf"), kept_exports._export

    def change(*arguments: Any) -> None:
        copy(*arguments)
        gguf(file, b"!")

    monkeypatch.setattr(kept_exports, "_export", change)
    with pytest.raises(CheckpointError, match="was changed while it was exported"):
        as_bundle(str(file))
    assert not list(kept.glob("*/model"))


def test_a_hubs_name_is_asked_once(
    exports: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And again for the revision that its cache has by then."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    reference = tmp_path / "hub" / "models--owner--name" / "refs" / "main"
    asked = []

    def give(name: str, patterns: object, download: bool) -> None:
        asked.append((name, download))
        reference.parent.mkdir(parents=True, exist_ok=True)
        reference.write_text(f"revision {len(asked)}")

    monkeypatch.setattr(kept_exports, "locate", give)
    first = as_bundle("owner/name")
    assert as_bundle("owner/name") == first
    assert first.name == "name"
    assert asked == [("owner/name", True)]
    reference.write_text("another")
    assert as_bundle("owner/name") != first
    (tmp_path / "owner" / "name").mkdir(parents=True)
    with pytest.raises(BundleError, match=r"owner/name: no manifest.json"):  # the path wins
        as_bundle("owner/name")


def run_export(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(export, words)
    return done.exit_code, done.output


def test_what_is_kept_is_listed_and_removed(
    exports: list[Path], kept: Path, tiny_bundle: Path, tmp_path: Path
) -> None:
    assert run_export("--list") == (0, "no exports are kept\n")
    for number in range(3):
        as_bundle(str(gguf(tmp_path / f"{number}.gguf", bytes([number]))))
    names = [bundle.parent.name for bundle in exports]
    code, shown = run_export("--list")
    source = Manifest.read(tiny_bundle).checkpoint.source
    assert (code, [name in shown for name in names]) == (0, [True] * 3)
    assert source[:8] in shown
    assert run_export("--remove", names[0]) == (0, "")
    assert run_export("--remove", names[0]) == (
        1,
        f"error: {names[0]}: no export of this name is kept; h2o-export --list shows all\n",
    )
    with (kept / "locks" / names[1]).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        told = f"error: {names[1]}: is being exported; remove it afterwards\n"
        assert run_export("--remove", names[1]) == (1, told)
    (exports[2] / "manifest.json").write_text("{}")  # of another version
    assert names[2] in run_export("--list")[1]
    assert run_export("--remove", "all") == (0, "")
    assert run_export("--list") == (0, "no exports are kept\n")
    assert not any(bundle.parent.exists() for bundle in exports)


REFUSED: dict[str, tuple[str, type[H2OError], str]] = {
    "nothing": (
        "{folder}/nowhere",
        BundleError,
        "{word}: no such folder; h2o-export writes a bundle from a checkpoint; " + TAKEN,
    ),
    "a hub's name beside a folder": (
        "empty/name",
        BundleError,
        "{word}: no such folder; h2o-export writes a bundle from a checkpoint; " + TAKEN,
    ),
    "a folder": (
        "empty",
        BundleError,
        "{word}: no manifest.json, so this is not a bundle, and no config.json, so it is no checkpoint; "
        + TAKEN,
    ),
    "a hub's name offline": (
        "nobody/nothing",
        CheckpointError,
        "{word}: no such folder here, and the hub could not give it: it cannot be reached",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    word, kind, sentence = REFUSED[case]
    word = word.format(folder=tmp_path)
    with pytest.raises(kind) as refused:
        as_bundle(word)
    assert str(refused.value) == sentence.format(word=word)


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/cache")
    with pytest.raises(OutputError, match=r"^/proc/cache/h2o-edge/bundles/index: files cannot be written"):
        as_bundle(str(gguf(tmp_path / "model.gguf")))


@pytest.mark.parametrize("code", [1, 3])
def test_an_export_that_fails_or_misses_a_verdict_is_not_used(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], code: int
) -> None:
    file = gguf(tmp_path / "model.gguf")
    write = "import os, sys; os.makedirs(place := sys.argv[-3]); open(place + '/manifest.json', 'w'); "
    monkeypatch.setattr(kept_exports, "_COMMAND", f"{write * (code == 3)} import sys; sys.exit({code})")
    with pytest.raises(SystemExit, match=str(code)):
        as_bundle(str(file))
    advice = f"{file} is not used: h2o-export {file} -o BUNDLE"
    assert (advice in capfd.readouterr().err) == (code == 3)
    assert not list(kept.glob("*/model"))


def test_an_export_that_the_system_kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_exports, "_COMMAND", "import os; os.kill(os.getpid(), 9)")
    with pytest.raises(BackendError, match=r"its export was killed by signal 9"):
        as_bundle(str(gguf(tmp_path / "model.gguf")))


def test_a_list_tells_the_share_of_each_format(tmp_path: Path) -> None:
    formats = {"int8": {"elements": 3}, "int4+offset": {"elements": 1}}
    manifest = {
        "checkpoint": {"source": "model.gguf"},
        "model": {"dtype": "float32", "weights": {"formats": formats}},
        "created_by": {"h2o-edge": "9.8"},
    }
    for weights, told in ((manifest, "75% int8 25% int4+offset"), ({}, "?")):
        (tmp_path / "manifest.json").write_text(json.dumps(weights))
        options = kept_exports.KeptExport.of(tmp_path).options
        assert options == (f"float32, weights {told}, h2o-edge 9.8" if weights else "?")
