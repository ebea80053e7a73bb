"""LoRA adapters (Hu et al., 2021), in the files of peft, and a checkpoint that they are merged into.

A matrix W [out, in] becomes W + scale · B A, with A [rank, in], B [out, rank] and scale = alpha / rank, or
alpha / √rank with rslora (Kalajdzievski, 2023).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from h2o_export.checkpoint_files import ADAPTER
from h2o_export.checkpoints.checkpoint import Checkpoint
from h2o_export.checkpoints.derived import DerivedCheckpoint
from h2o_export.checkpoints.safetensors import SafetensorsCheckpoint, read_json
from h2o_export.tensors import Integers, QuantizedTensor
from h2o_runtime.bundles.manifest import file_sha256
from h2o_runtime.errors import CheckpointError
from h2o_runtime.files.inputs import confined

WEIGHTS = "adapter_model.safetensors"
_FACTOR = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<factor>[AB])(?:\.default)?\.weight")
# Settings that change nothing here: which modules there are, the tensors say, and training is over.
_READ = {"peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern"}
_TRAINING = {
    *("task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode"),
    *("target_modules", "exclude_modules", "lora_dropout", "layers_to_transform", "layers_pattern"),
    *("fan_in_fan_out", "megatron_core", "qalora_group_size", "runtime_config", "ensure_weight_tying"),
    *("eva_config", "loftq_config"),
}
_INITIAL = (True, False, "gaussian", "orthogonal", "eva")  # others change the base model's own weights


@dataclass(frozen=True)
class Adapter:
    """folder  as the user names it
    scale    by module
    factors  names of A and B in the file, by module
    """

    folder: Path
    scale: Mapping[str, float]
    factors: Mapping[str, tuple[str, str]]

    @classmethod
    def open(cls, folder: Path) -> Adapter:
        """Raises CheckpointError for what is no LoRA adapter, or does more than W + scale · B A."""
        if not (folder / ADAPTER).is_file():
            raise CheckpointError(f"{folder}: has no {ADAPTER}, so it is not the folder of an adapter")
        settings = read_json(folder / ADAPTER)
        _refuse_others(folder, settings)
        shapes = _shapes(folder)
        found: dict[str, dict[str, str]] = {}
        for name in shapes:
            place = _FACTOR.fullmatch(name)
            if place is None:
                raise CheckpointError(
                    f"{folder}: its tensor '{name}' is no factor of a matrix: adapters of embeddings, biases and "
                    "whole modules are not supported; merge it by peft's merge_and_unload()"
                )
            found.setdefault(place["module"], {})[place["factor"]] = name
        scale, factors = {}, {}
        for module, names in found.items():
            if len(names) < 2:
                raise CheckpointError(f"{folder}: has only one factor of '{module}'; download it again")
            a, b = names["A"], names["B"]
            rank = _setting(folder, settings, "rank_pattern", "r", 8, module)
            if shapes[a][0] != rank or shapes[b][1] != rank:
                raise CheckpointError(
                    f"{folder}: the factors of '{module}' have the shapes {list(shapes[a])} and {list(shapes[b])}, "
                    f"but {ADAPTER} says rank {rank:g}"
                )
            alpha = _setting(folder, settings, "alpha_pattern", "lora_alpha", 8, module)
            scale[module] = alpha / (math.sqrt(rank) if settings.get("use_rslora") else rank)
            factors[module] = (a, b)
        return cls(folder, scale, factors)

    def difference(self, module: str) -> Tensor:
        """scale · B A of a module, float32 [out, in]. Raises CheckpointError."""
        a, b = (_read(self.folder, name).float() for name in self.factors[module])
        return (b @ a) * self.scale[module]

    def shape(self, module: str) -> tuple[int, int]:
        shapes = _shapes(self.folder)
        a, b = self.factors[module]
        return shapes[b][0], shapes[a][1]

    def sha256(self) -> str:
        hashes = (file_sha256(_file(self.folder, name)) for name in (ADAPTER, WEIGHTS))
        return hashlib.sha256(b"".join(map(bytes.fromhex, hashes))).hexdigest()


def _refuse_others(folder: Path, settings: Mapping[str, Any]) -> None:
    kind = settings.get("peft_type")
    if kind != "LORA":
        raise CheckpointError(f"{folder}: is an adapter of the kind {kind}; only LORA can be merged")
    used = [name for name in sorted(settings.keys() - _READ - _TRAINING) if _is_used(name, settings[name])]
    if used:
        raise CheckpointError(
            f"{folder}: {ADAPTER} has {', '.join(used)}, which cannot be merged here; merge it by peft's "
            "merge_and_unload()"
        )


def _is_used(name: str, value: object) -> bool:
    if name == "bias":
        return value != "none"
    if name == "init_lora_weights":
        return value not in _INITIAL
    return bool(value)


def _setting(
    folder: Path, settings: Mapping[str, Any], by_module: str, everywhere: str, default: float, module: str
) -> float:
    """The first pattern that matches the whole name, or its end after a dot; otherwise the common value."""
    patterns = settings.get(by_module) or {}
    value = settings.get(everywhere, default)
    try:
        for pattern, own in patterns.items():
            if re.match(rf"(.*\.)?({pattern})$", module):
                value = own
                break
    except (re.error, AttributeError) as error:
        raise CheckpointError(
            f"{folder}: {ADAPTER} has a {by_module} that cannot be read: {error}"
        ) from error
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise CheckpointError(f"{folder}: {ADAPTER} has {value!r} as {everywhere} of '{module}'")
    return value


def _file(folder: Path, name: str) -> Path:
    file = confined(folder, name, CheckpointError)
    if not file.is_file():
        hint = "; convert adapter_model.bin to safetensors first" if list(folder.glob("*.bin")) else ""
        raise CheckpointError(f"{folder}: has no {name}{hint}")
    return file


def _shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    file = _file(folder, WEIGHTS)
    try:
        with safe_open(file, framework="pt") as handle:
            return {name: tuple(handle.get_slice(name).get_shape()) for name in handle.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file}: not a whole safetensors file ({error}); download it again") from error


def _read(folder: Path, name: str) -> Tensor:
    try:
        with safe_open(_file(folder, WEIGHTS), framework="pt") as handle:
            tensor: Tensor = handle.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{folder}: cannot read tensor '{name}': {error}") from error
    return tensor


@dataclass(frozen=True)
class MergedCheckpoint(DerivedCheckpoint):
    """`original` with an adapter's differences added, in float32.

    modules  of the adapter, by the names of the matrices that they change
    """

    adapter: Adapter
    modules: Mapping[str, str]

    def check(self, tensors: Mapping[str, tuple[int, ...]]) -> None:
        super().check(tensors)
        for name, module in self.modules.items():
            if name not in tensors:
                raise CheckpointError(
                    f"{self.adapter.folder}: changes '{module}', which is no matrix of {self.source}; is it an "
                    "adapter for another model?"
                )
            if self.adapter.shape(module) != tensors[name]:
                raise CheckpointError(
                    f"{self.adapter.folder}: changes '{module}' by {list(self.adapter.shape(module))} numbers, but "
                    f"{self.source} has {list(tensors[name])}; is it an adapter for another model?"
                )

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        tensor = self.original.tensor(name, shape)
        module = self.modules.get(name)
        return tensor if module is None else tensor.float() + self.adapter.difference(module)

    def integers(self, name: str) -> Integers | None:
        return None if name in self.modules else self.original.integers(name)

    def blocks(self, name: str) -> QuantizedTensor | None:
        return None if name in self.modules else self.original.blocks(name)

    @property
    def adapter_folder(self) -> Path:
        return self.adapter.folder

    def sha256(self) -> str:
        both = self.original.sha256() + self.adapter.sha256()
        return hashlib.sha256(bytes.fromhex(both)).hexdigest()


def merged(checkpoint: Checkpoint, files: Checkpoint, folder: Path | None) -> Checkpoint:
    """The checkpoint with the adapter in `folder`; None: the checkpoint itself. Raises CheckpointError.

    files: those that the checkpoint presents, perhaps of more than a text model
    """
    if folder is None:
        return checkpoint
    adapter = Adapter.open(folder)
    names = files.names if isinstance(files, SafetensorsCheckpoint) else {}
    own = {stored: name for name, stored in names.items()}
    modules = {own.get(f"{module}.weight", f"{module}.weight"): module for module in adapter.factors}
    return MergedCheckpoint(
        checkpoint.path, checkpoint.source, checkpoint.config, checkpoint, adapter, modules
    )
