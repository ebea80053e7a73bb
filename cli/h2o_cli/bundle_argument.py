"""The argument BUNDLE of commands: the folder of a bundle, or a checkpoint, which is exported once and kept."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

import click

from h2o_cli.help import Command
from h2o_cli.kept_exports import Source, exported
from h2o_export.checkpoint_files import ADAPTER, HUB_NAME, HUB_PATTERNS, SHARD, is_gguf, shards_of
from h2o_runtime.bundles.manifest import MANIFEST
from h2o_runtime.errors import BundleError

_KINDS = "a GGUF file, a Hugging Face folder"
_TAKEN = f"{_KINDS} and a hub's OWNER/NAME are taken too, and exported once"
_MISSING = "no such folder; h2o-export writes a bundle from a checkpoint"


def bundle_argument(command: Command) -> Command:
    """`as_bundle` makes a folder of its value."""
    checkpoint = f"{_KINDS} or a hub's OWNER/NAME, which is exported once and kept"
    command.__doc__ = f"{(command.__doc__ or '').rstrip()} BUNDLE may also be {checkpoint}."
    return click.argument("bundle")(command)


def as_bundle(word: str, missing: str = _MISSING) -> Path:
    """The folder of a bundle, exported if need be. Raises as `find_bundle` and `exported` do."""
    found = find_bundle(word, missing)
    return found if isinstance(found, Path) else exported(found)


def find_bundle(word: str, missing: str = _MISSING) -> Path | Source:
    """A bundle's folder, or the checkpoint to export. Whatever else is at the path, reading its manifest tells.

    missing: the message for a word that is neither a path nor a hub's name. Raises BundleError.
    """
    path = Path(word)
    try:
        if (path / MANIFEST).exists():
            return path
        source = _source(path, word)
    except OSError:
        return path
    if source is not None:
        return source
    if path.is_dir():
        raise BundleError(
            f"{word}: no {MANIFEST}, so this is not a bundle, and no config.json, so it is no checkpoint; {_TAKEN}"
        )
    if path.exists():
        return path
    raise BundleError(f"{word}: {missing}; {_TAKEN}")


def _source(path: Path, word: str) -> Source | None:
    """The checkpoint; None where there is none. Raises OSError for a path that cannot be looked up."""
    if is_gguf(path):
        named = SHARD.fullmatch(path.name)
        shards = shards_of(path, int(named["count"])) if named else (path,)
        files = {str(number): shard for number, shard in enumerate(shards) if shard.exists()}
        return Source(word, named["stem"] if named else path.stem, files)
    if any((path / name).is_file() for name in ("config.json", ADAPTER)):
        within = {str(file.relative_to(path)): file for file in sorted(path.rglob("*")) if file.is_file()}
        known = [name for name in within if any(fnmatch(name, pattern) for pattern in HUB_PATTERNS)]
        files = {name: within[name] for name in known}
        return Source(word, path.resolve().name, files)
    name = HUB_NAME.fullmatch(word)
    if name is None or path.exists() or Path(name[1]).is_dir():
        return None
    return Source(word, path.name)
