"""A Hugging Face model folder: `config.json` and safetensors files."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from h2o_export.architecture.config import ModelConfig
from h2o_export.architecture.families import FAMILIES
from h2o_export.checkpoint_files import GENERATION, TOKENIZER_FILES
from h2o_export.checkpoints import adapters
from h2o_export.checkpoints.checkpoint import CheckpointInFiles
from h2o_export.checkpoints.sentence import embedding_spec
from h2o_export.checkpoints.text_model import text_config, text_names
from h2o_runtime.bundles.manifest import EmbeddingSpec, file_sha256
from h2o_runtime.errors import BundleError, CheckpointError
from h2o_runtime.files.inputs import confined
from h2o_runtime.text import Tokenizer
from h2o_runtime.text.files import REMEDY


@dataclass(frozen=True)
class SafetensorsCheckpoint(CheckpointInFiles):
    """`files` names the safetensors file that holds each tensor.

    names  of tensors in the files, by their own, where the files hold more than a text model: see `text_model`
    """

    files: dict[str, Path]
    names: Mapping[str, str]

    @classmethod
    def takes(cls, path: Path) -> bool:
        return path.is_dir()

    @classmethod
    def open(cls, path: Path, source: str) -> SafetensorsCheckpoint:
        raw = read_json(path / "config.json")
        config = ModelConfig.from_huggingface(text_config(raw))
        files = tensor_files(path)
        names = text_names(raw, files, config.tied, source)
        checkpoint = cls(path, source, config, files, names)
        checkpoint.check_tokenizer()
        return checkpoint

    @property
    def config_file(self) -> Path:
        return self.path / "config.json"

    def unused(self, used: Collection[str]) -> frozenset[str]:
        return frozenset(self.names or self.files) - frozenset(used)

    def check(self, tensors: Mapping[str, tuple[int, ...]]) -> None:
        in_file: dict[Path, list[str]] = {}
        for name in tensors:
            in_file.setdefault(self._file(name), []).append(name)
        for file, names in in_file.items():
            with safe_open(file, framework="pt") as handle:
                for name in names:
                    stored = handle.get_slice(self.names.get(name, name)).get_shape()
                    self._check_shape(name, tuple(stored), tensors[name])

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Read one tensor in its stored dtype."""
        tensor, file = self.read(name), self._file(name)
        self._check_shape(name, tuple(tensor.shape), shape)
        if not tensor.is_floating_point() or tensor.element_size() < 2:
            raise CheckpointError(
                f"{file}: tensor '{name}' is {tensor.dtype}; quantized weights are not supported"
            )
        return tensor

    def read(self, name: str, cut: int | tuple[slice, ...] | None = None) -> Tensor:
        """One tensor as it is, or what stands at an index of its first dimension or in a slice.

        The file is opened anew, so no mapping outlives the call. Raises CheckpointError.
        """
        file, name = self._file(name), self.names.get(name, name)
        try:
            with safe_open(file, framework="pt") as handle:
                tensor: Tensor = handle.get_tensor(name) if cut is None else handle.get_slice(name)[cut]
        except (SafetensorError, OSError, IndexError) as error:
            raise CheckpointError(
                f"{file}: cannot read tensor '{name}': {error}; download it again"
            ) from error
        return tensor

    def _file(self, name: str) -> Path:
        """The file with a tensor in it. Raises CheckpointError."""
        stored = self.names.get(name, name)
        file = self.files.get(stored)
        if file is None:
            raise CheckpointError(
                f"{self.source}: its safetensors files have no tensor '{stored}'; download it again"
            )
        return file

    def _check_shape(self, name: str, stored: tuple[int, ...], expected: tuple[int, ...]) -> None:
        if stored != expected:
            raise CheckpointError(
                f"{self._file(name)}: tensor '{name}' has shape {list(stored)}, but config.json implies "
                f"{list(expected)}"
            )

    def sha256(self) -> str:
        """Hash over the hashes of config.json and every safetensors file."""
        total = hashlib.sha256()
        for path in sorted({self.config_file, *self.files.values()}):
            total.update(bytes.fromhex(file_sha256(path)))
        return total.hexdigest()

    @property
    def tokenizer_file(self) -> Path:
        return confined(self.path, "tokenizer.json", CheckpointError)

    def write_tokenizer(self, folder: Path) -> None:
        for name in TOKENIZER_FILES:
            file = confined(self.path, name, CheckpointError)
            if file.is_file():
                shutil.copyfile(file, folder / name)
        if not (
            folder / GENERATION
        ).exists():  # transformers then reads config.json, which a bundle does not have
            raw = text_config(read_json(self.config_file)) | read_json(self.config_file)
            ends = {key: raw[key] for key in ("bos_token_id", "eos_token_id") if raw.get(key) is not None}
            if ends:
                (folder / GENERATION).write_text(json.dumps(ends) + "\n", encoding="utf-8")

    @property
    def embedding(self) -> EmbeddingSpec:
        return embedding_spec(self.path)

    def transformers_config(self) -> Any:
        from transformers import AutoConfig

        built_as, rope = FAMILIES[self.config.family].built_as, self.config.rope
        if built_as is None and not rope.factors:
            return AutoConfig.from_pretrained(self.path).get_text_config()
        raw = text_config(read_json(self.config_file))
        if rope.factors:
            given = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
            raw |= dict.fromkeys(("rope_parameters", "rope_scaling"), given | rope.in_transformers())
        model_type = built_as or raw["model_type"]
        return type(AutoConfig.for_model(model_type)).from_dict(raw | {"model_type": model_type})

    def check_tokenizer(self) -> None:
        if not confined(self.path, "tokenizer.json", CheckpointError).is_file():
            raise CheckpointError(
                f"{self.source}: no tokenizer.json; save one with "
                "AutoTokenizer.from_pretrained(…, use_fast=True).save_pretrained(folder)"
            )
        try:
            Tokenizer.load(self.path)
        except BundleError as error:
            raise CheckpointError(str(error).replace(REMEDY, "download it again")) from error


def read_json(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(confined(path.parent, path.name, CheckpointError).read_text(encoding="utf-8"))
    except FileNotFoundError:
        hint = "; give one of its GGUF files itself" if list(path.parent.glob("*.gguf")) else ""
        if (path.parent / "manifest.json").is_file():
            hint = "; it is a bundle already"
        raise CheckpointError(
            f"{path.parent}: has no {path.name}, so it is not a Hugging Face model folder{hint}"
        ) from None
    except (
        OSError,
        ValueError,
        RecursionError,
    ) as error:  # also numbers too long and brackets nested too deeply
        raise CheckpointError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path}: is not a JSON object; download it again")
    return raw


def tensor_files(folder: Path) -> dict[str, Path]:
    """The file of each tensor, from one file or from the index of a sharded model."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = read_json(index).get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
            raise CheckpointError(f"{index}: has no weight_map; download it again")
        named = {name: confined(folder, name, CheckpointError) for name in sorted(set(shards.values()))}
        missing = [name for name, path in named.items() if not path.is_file()]
        if missing:
            raise CheckpointError(
                f"{folder}: shard {missing[0]} is missing ({len(missing)} in all); download it"
            )
        paths = sorted(named.values())
    else:
        found = sorted(folder.glob("model.safetensors")) or sorted(folder.glob("*.safetensors"))
        paths = [confined(folder, path.name, CheckpointError) for path in found]
        if not paths:
            hint = "; convert pytorch_model.bin to safetensors first" if list(folder.glob("*.bin")) else ""
            raise CheckpointError(f"{folder}: no safetensors files{hint}")
    files: dict[str, Path] = {}
    for path in paths:
        try:
            with safe_open(path, framework="pt") as handle:
                names = handle.keys()
        except (SafetensorError, OSError) as error:
            if path.exists() and not os.access(path, os.R_OK, effective_ids=True):
                raise CheckpointError(f"{path}: cannot be read: check its permissions") from error
            raise CheckpointError(
                f"{path}: not a whole safetensors file ({error}); download it again"
            ) from error
        twice = [name for name in names if name in files]
        if twice:
            raise CheckpointError(
                f"{path}: has the tensor '{twice[0]}', which {files[twice[0]].name} has too; remove the file that "
                "does not belong to the model"
            )
        files.update(dict.fromkeys(names, path))
    adapters.check_merged(files, folder)
    return files
