"""Reading a Hugging Face checkpoint: a folder (or hub name) with `config.json` and safetensors files."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from h2o_export.config import ModelConfig
from h2o_runtime.errors import BundleError, CheckpointError
from h2o_runtime.manifest import file_sha256
from h2o_runtime.text import Tokenizer
from h2o_runtime.text.files import REMEDY

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
)


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint. No tensor is in memory until `tensor` is called."""

    folder: Path
    source: str  # what the user named: a folder or a hub name
    config: ModelConfig
    files: dict[str, Path]  # tensor name → the safetensors file that holds it

    @classmethod
    def open(cls, source: str) -> Checkpoint:
        """Raises CheckpointError for missing or broken files, UnsupportedModelError for an unknown model."""
        folder = _locate(source)
        config = ModelConfig.from_huggingface(_read_json(folder / "config.json"))
        checkpoint = cls(folder, source, config, _index(folder))
        checkpoint._check_tokenizer()
        return checkpoint

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Read one tensor in its stored dtype. The file is opened anew, so no mapping outlives the call."""
        file = self.files.get(name)
        if file is None:
            raise CheckpointError(
                f"{self.source}: no tensor '{name}' in its safetensors files; is it incomplete?"
            )
        try:
            with safe_open(file, framework="pt") as handle:
                tensor: Tensor = handle.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"{file}: cannot read tensor '{name}': {error}; download it again"
            ) from error
        if tuple(tensor.shape) != shape:
            raise CheckpointError(
                f"{file}: tensor '{name}' has shape {list(tensor.shape)}, but config.json implies {list(shape)}"
            )
        if not tensor.is_floating_point() or tensor.element_size() < 2:
            raise CheckpointError(
                f"{file}: tensor '{name}' is {tensor.dtype}; quantized weights are not supported"
            )
        return tensor

    def sha256(self) -> str:
        """Identity of the checkpoint: hash over the hashes of config.json and every safetensors file."""
        total = hashlib.sha256()
        for path in sorted({self.folder / "config.json", *self.files.values()}):
            total.update(bytes.fromhex(file_sha256(path)))
        return total.hexdigest()

    def _check_tokenizer(self) -> None:
        if not (self.folder / "tokenizer.json").is_file():
            raise CheckpointError(
                f"{self.source}: no tokenizer.json; save one with "
                "AutoTokenizer.from_pretrained(…, use_fast=True).save_pretrained(folder)"
            )
        try:
            Tokenizer.load(self.folder)
        except BundleError as error:
            raise CheckpointError(str(error).replace(REMEDY, "download it again")) from error


def _locate(source: str) -> Path:
    """A folder as it is; anything shaped like owner/name through the hub's cache."""
    try:
        folder = Path(source).expanduser()
        if folder.is_dir():
            return folder
        if folder.exists():
            raise CheckpointError(
                f"{source} is a file; give the folder that holds config.json and the safetensors files"
            )
    except (OSError, RuntimeError) as error:  # a name too long, a folder without permission, an unknown ~user
        raise CheckpointError(f"{source}: cannot be looked up: {error}") from error
    if source.count("/") != 1 or source.startswith((".", "/", "~")):
        raise CheckpointError(f"{source}: no such folder")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    patterns = ["config.json", "*.safetensors", "*.safetensors.index.json", *TOKENIZER_FILES]
    try:
        return Path(snapshot_download(source, allow_patterns=patterns))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(
            f"{source}: no such folder here, and the hub could not give it: {reason}"
        ) from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(
            f"{path.parent}: no {path.name}; is this a Hugging Face model folder?"
        ) from None
    except (OSError, ValueError, RecursionError) as error:  # also numbers too long and brackets too deep
        raise CheckpointError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path}: expected a JSON object")
    return raw


def _index(folder: Path) -> dict[str, Path]:
    """Which file holds each tensor, for one file or for shards with an index."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = _read_json(index).get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
            raise CheckpointError(f"{index}: no weight_map; download it again")
        missing = sorted({name for name in shards.values() if not (folder / name).is_file()})
        if missing:
            raise CheckpointError(f"{folder}: shard {missing[0]} is missing ({len(missing)} in all)")
        paths = sorted({folder / name for name in shards.values()})
    else:
        paths = sorted(folder.glob("model.safetensors")) or sorted(folder.glob("*.safetensors"))
        if not paths:
            hint = "; convert pytorch_model.bin to safetensors first" if list(folder.glob("*.bin")) else ""
            raise CheckpointError(f"{folder}: no safetensors files{hint}")
    files: dict[str, Path] = {}
    for path in paths:
        try:
            with safe_open(path, framework="pt") as handle:
                files.update(dict.fromkeys(handle.keys(), path))
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"{path}: not a whole safetensors file ({error}); download it again"
            ) from error
    return files


def to_dtype(tensor: Tensor, dtype: torch.dtype, name: str) -> Tensor:
    """Convert weights; a value that leaves float16's range is an error, not a silent infinity."""
    converted = tensor.to(dtype)
    if dtype == torch.float16 and not bool(torch.isfinite(converted).all()):
        raise CheckpointError(
            f"tensor '{name}' has values beyond float16's range; export with --dtype float32"
        )
    return converted
