"""Exports that are kept in the user's cache, by a hash of what was exported. Imports no large library.

bundles/KEY/NAME    a bundle; KEY is a hash of the checkpoint, of the flags and of this version
bundles/index/…     hashes of files that were read before, by where and what they were
bundles/locks/KEY   locked by whoever writes or removes that export
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import click

from h2o_cli.extras import needs_export
from h2o_cli.stopping import Stop
from h2o_cli.usage import Exit
from h2o_export.checkpoint_files import (
    ADAPTER,
    HUB_NAME,
    HUB_PATTERNS,
    SHARD,
    is_gguf,
    locate,
    shards_of,
)
from h2o_export.staging import where_locks_are_unknown
from h2o_runtime.bundles.manifest import FORMAT, MANIFEST, file_sha256
from h2o_runtime.errors import BackendError, CheckpointError, OutputError
from h2o_runtime.files.outputs import make_private_folder, replace_file, user_cache
from h2o_runtime.operators import VERSION

FLAGS = ("--dtype", "float32", "--weights", "stored")  # of all exports: the defaults of h2o-export
ALL = "all"
_INDEX, _LOCKS = "index", "locks"
# Without the working directory, which -c puts first on the path: a folder there could have a library's name.
_COMMAND = (
    "import sys; sys.argv[0] = 'h2o-export'; sys.path[:] = filter(None, sys.path); "
    "from h2o_cli.entry import export; export()"
)


@dataclass(frozen=True)
class Source:
    """What is exported.

    word   as the user named it
    name   of the folder that its bundle gets
    files  by names that belong to the contents; none of a hub's name
    """

    word: str
    name: str
    files: Mapping[str, Path] = field(default_factory=dict)

    @classmethod
    def of(cls, word: str) -> Source | None:
        """The checkpoint; None where there is none. Raises OSError for a path that cannot be looked up."""
        path = Path(word)
        if is_gguf(path):
            named = SHARD.fullmatch(path.name)
            shards = shards_of(path, int(named["count"])) if named else (path,)
            files = {str(number): shard for number, shard in enumerate(shards) if shard.exists()}
            return cls(word, named["stem"] if named else path.stem, files)
        if any((path / name).is_file() for name in ("config.json", ADAPTER)):
            within = {str(file.relative_to(path)): file for file in sorted(path.rglob("*")) if file.is_file()}
            known = [name for name in within if any(fnmatch(name, pattern) for pattern in HUB_PATTERNS)]
            files = {name: within[name] for name in known}
            return cls(word, path.resolve().name, files)
        name = HUB_NAME.fullmatch(word)
        if name is None or path.exists() or Path(name[1]).is_dir():
            return None
        return cls(word, path.name)

    def key(self) -> str:
        """Raises CheckpointError for files that change meanwhile, OSError for those that cannot be read."""
        contents = self._contents() if self.files else f"{self.word} {_revision(self.word)}"
        version = importlib.metadata.version("h2o-edge")
        return _sha256(contents, FLAGS, version, FORMAT, VERSION)[:16]

    def _contents(self) -> str:
        """A hash of all files, read only where the index does not know them."""
        known = self._known()
        place = _place() / _INDEX / known
        with suppress(FileNotFoundError):
            return place.read_text()
        contents = _sha256([(name, file_sha256(path)) for name, path in self.files.items()])
        if self._known() != known:
            raise CheckpointError(f"{self.word}: was written into while it was read; start again later")
        make_private_folder(place.parent)
        replace_file(place, contents)
        return contents

    def _known(self) -> str:
        files = [(name, os.path.realpath(path), path.stat()) for name, path in self.files.items()]
        return _sha256([(*at, found.st_size, found.st_mtime_ns, found.st_ino) for *at, found in files])


@dataclass(frozen=True)
class KeptExport:
    """name: of the folder around the bundle; used: when, in seconds since 1970."""

    name: str
    source: str
    options: str
    bytes: int
    used: float

    @classmethod
    def of(cls, bundle: Path) -> KeptExport:
        """Also of a version that writes other manifests."""
        source = options = "?"
        with suppress(KeyError, TypeError, ValueError):
            manifest: dict[str, Any] = json.loads((bundle / MANIFEST).read_bytes())
            source, model = manifest["checkpoint"]["source"], manifest["model"]
            formats = (model.get("weights") or {}).get("formats") or {"float": {"elements": 1}}
            whole = sum(one["elements"] for one in formats.values())
            weights = " ".join(f"{one['elements'] / whole:.0%} {name}" for name, one in formats.items())
            options = f"{model['dtype']}, weights {weights}, h2o-edge {manifest['created_by']['h2o-edge']}"
        size = sum(path.stat().st_size for path in bundle.rglob("*") if path.is_file())
        return cls(bundle.parent.name, source, options, size, bundle.stat().st_mtime)


def kept_exports() -> list[KeptExport]:
    """Those that are complete, the last used first."""
    found = [KeptExport.of(path.parent) for path in _place().glob(f"*/*/{MANIFEST}")]
    return sorted(found, key=lambda kept: kept.used, reverse=True)


def exported(source: Source) -> Path:
    """The bundle, from an earlier export or from one that begins now.

    Raises BackendError where packages are missing, CheckpointError, and OutputError. Ends the command as h2o-export
    ends where that fails.
    """
    if found := _find(source.key()):
        return found
    for package in ("torch", "transformers"):
        if importlib.util.find_spec(package) is None:
            raise BackendError(needs_export("exporting", ImportError(f"No module named '{package}'")))
    if not source.files:
        locate(source.word, HUB_PATTERNS, download=True)
    key = source.key()
    bundle = _place() / key / source.name
    with _locked(key, source.word) as lock:
        if found := _find(key):
            return found
        shutil.rmtree(bundle.parent, ignore_errors=True)  # of a process that was killed
        click.echo(f"{source.word} is exported once to {bundle}", err=True)
        _export(source.word, bundle, lock)
        if source.key() != key:
            _remove(bundle.parent)
            raise CheckpointError(f"{source.word}: was changed while it was exported; start again")
    return bundle


def remove(name: str) -> None:
    """One of `kept_exports`, or `ALL`, with what killed processes left. Raises OutputError."""
    folders = [path for path in _place().glob("*") if path.name not in (_INDEX, _LOCKS)]
    chosen = [folder for folder in folders if name in (folder.name, ALL)]
    if not chosen and name != ALL:
        raise OutputError(f"{name}: no export of this name is kept; h2o-export --list shows all")
    for folder in chosen:
        with _locked(folder.name):
            _remove(folder)


def _place() -> Path:
    return user_cache() / "h2o-edge" / "bundles"


def _find(key: str) -> Path | None:
    """The complete export, marked as used now."""
    for manifest in (_place() / key).glob(f"*/{MANIFEST}"):
        with suppress(OSError):  # of a cache that cannot be written
            os.utime(manifest.parent)
        return manifest.parent
    return None


def _remove(folder: Path) -> None:
    """First what makes an export complete, so that no half of one is used."""
    for manifest in folder.glob(f"*/{MANIFEST}"):
        manifest.unlink()
    shutil.rmtree(folder)


@contextmanager
def _locked(key: str, waits_for: str = "") -> Iterator[int]:
    """Yields the descriptor that holds the lock, also in processes that inherit it.

    waits_for: what another process may be exporting; without it that raises OutputError
    """
    locks = _place() / _LOCKS
    make_private_folder(locks)
    with (locks / key).open("w") as file:
        with where_locks_are_unknown():
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not waits_for:
                    raise OutputError(f"{key}: is being exported; remove it afterwards") from None
                click.echo(f"waiting for another process, which exports {waits_for}", err=True)
                fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


def _export(word: str, bundle: Path, lock: int) -> None:
    """By a process of its own: its memory is free afterwards. Where this one is killed, it keeps the lock.

    The hub was asked before, and the revision that it gave is part of the key.
    """
    child = subprocess.Popen(
        [sys.executable, "-c", _COMMAND, *FLAGS, "-o", str(bundle), "--", word],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        pass_fds=[lock],
        start_new_session=True,  # a terminal's Ctrl-C is for the command, which hands it on once
    )
    try:
        code = child.wait()
    except KeyboardInterrupt:
        number = Stop.of_command().number or signal.SIGINT
        child.send_signal(number)
        child.wait()
        sys.exit(128 + number)
    if code == Exit.TOLERANCE:
        _remove(bundle.parent)
        click.echo(f"{word} is not used: h2o-export {word} -o BUNDLE writes it all the same", err=True)
    if code < 0:
        raise BackendError(
            f"{word}: its export was killed by signal {-code}, as the system does where memory is short"
        )
    if code:
        sys.exit(code)  # it has told why


def _revision(name: str) -> str:
    """Of a checkpoint in the hub's cache; empty if it is not there."""
    from huggingface_hub.constants import HF_HUB_CACHE

    with suppress(OSError):
        return (Path(HF_HUB_CACHE) / f"models--{name.replace('/', '--')}" / "refs" / "main").read_text()
    return ""


def _sha256(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
