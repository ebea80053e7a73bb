"""The files of a checkpoint, and where they are: at a path, or in the hub's cache. Imports no large library."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from h2o_runtime.errors import CheckpointError

ADAPTER = "adapter_config.json"
GENERATION = "generation_config.json"
MODULES = "modules.json"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    GENERATION,
    "chat_template.jinja",
)
HUB_PATTERNS = (
    "config.json",
    ADAPTER,
    "*quant*_config.json",  # of older packed checkpoints
    "*.safetensors",
    "*.safetensors.index.json",
    *TOKENIZER_FILES,
    MODULES,
    "*Pooling/config.json",
)
HUB_NAME = re.compile(r"(?![.~])([^/\\]+)/[^/\\]+(?<!\.gguf)")
SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


def locate(source: str, patterns: Sequence[str], download: bool) -> Path:
    """A file or folder as it is; anything of the form owner/name in the hub's cache.

    With `download` the hub is asked for that name, and only files that match `patterns` are fetched. Otherwise, and
    for what is clearly a path of this machine, no connection is opened: a misspelt path tells nobody. Raises
    CheckpointError.
    """
    try:
        path = Path(source).expanduser()
        if path.exists():
            return path
    except (OSError, RuntimeError) as error:  # for example, a name too long, no permission, an unknown ~user
        raise CheckpointError(f"{source}: cannot be looked up: {error}") from error
    name = HUB_NAME.fullmatch(source)
    if name is None:
        raise CheckpointError(f"{source}: no such file or folder")
    if download and Path(name[1]).is_dir():
        raise CheckpointError(
            f"{source}: no such file or folder; the hub is not asked, because there is a folder {name[1]}"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        return Path(snapshot_download(source, allow_patterns=list(patterns), local_files_only=not download))
    except (HFValidationError, OSError, RuntimeError) as error:
        if not download:
            raise CheckpointError(
                f"{source}: no such folder here, nor is it in the hub's cache; h2o-export downloads it"
            ) from error
        raise CheckpointError(
            f"{source}: no such folder here, and the hub could not give it: {_reason(error)}"
        ) from error


def is_gguf(path: Path) -> bool:
    if not path.is_file() or path.suffix == ".gguf":
        return path.is_file()
    with path.open("rb") as stream:
        return stream.read(4) == b"GGUF"


def shards_of(path: Path, count: int) -> tuple[Path, ...]:
    """The files of a split GGUF model, by the name of one of them."""
    stem = path.name[: -len("-00000-of-00000.gguf")]
    return tuple(path.with_name(f"{stem}-{i:05d}-of-{count:05d}.gguf") for i in range(1, count + 1))


def _reason(error: Exception) -> str:
    """In our words: the library's have several lines, and its own remedies."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    match error:
        case HFValidationError():
            return "it is no name that a hub has"
        case GatedRepoError():
            return "its terms must be accepted there first, and HF_TOKEN set"
        case RepositoryNotFoundError():
            return "it has no public checkpoint of this name"
        case HfHubHTTPError():
            return f"it answers with status {error.response.status_code}"
        case LocalEntryNotFoundError() | ConnectionError():
            return "it cannot be reached"
    return getattr(error, "strerror", None) or str(error)
