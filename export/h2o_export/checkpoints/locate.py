"""Locates a checkpoint: a path, or a hub name looked up in the hub's cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from h2o_runtime.errors import CheckpointError


def locate(source: str, patterns: Sequence[str], download: bool) -> Path:
    """A file or folder as it is; anything of the form owner/name in the hub's cache.

    With `download` the hub is asked for that name, and only files that match `patterns` are fetched. Otherwise no
    connection is opened, so that a misspelt path tells nobody. Raises CheckpointError.
    """
    try:
        path = Path(source).expanduser()
        if path.exists():
            return path
    except (OSError, RuntimeError) as error:  # for example, a name too long, no permission, an unknown ~user
        raise CheckpointError(f"{source}: cannot be looked up: {error}") from error
    if source.count("/") != 1 or source.startswith((".", "/", "~")):
        raise CheckpointError(f"{source}: no such file or folder")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(source, allow_patterns=list(patterns), local_files_only=not download))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError, RuntimeError) as error:
        if not download:
            raise CheckpointError(
                f"{source}: no such folder here, nor is it in the hub's cache; only h2o-export downloads"
            ) from error
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(
            f"{source}: no such folder here, and the hub could not give it: {reason}"
        ) from error
