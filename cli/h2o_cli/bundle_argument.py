"""The argument BUNDLE of commands: the folder of a bundle, or a checkpoint, which is exported once and kept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from h2o_cli.help import Command
from h2o_runtime.bundles.manifest import MANIFEST
from h2o_runtime.errors import BundleError

if TYPE_CHECKING:  # a bundle alone needs nothing of the exporter
    from h2o_cli.kept_exports import Source

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
    return folder_of(find_bundle(word, missing))


def folder_of(found: Path | Source) -> Path:
    """What `find_bundle` found as a bundle's folder. Raises as `exported` does."""
    if isinstance(found, Path):
        return found
    from h2o_cli.kept_exports import exported

    return exported(found)


def find_bundle(word: str, missing: str = _MISSING) -> Path | Source:
    """A bundle's folder, or the checkpoint to export. Whatever else is at the path, reading its manifest tells.

    missing: the message for a word that is neither a path nor a hub's name. Raises BundleError.
    """
    path = Path(word)
    try:
        if (path / MANIFEST).exists():
            return path
        from h2o_cli.kept_exports import Source

        source = Source.of(word)
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
