"""A Hugging Face folder with a `quantization_config` in `config.json`, or in an older file beside it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from h2o_export.architecture.config import ModelConfig
from h2o_export.checkpoints.quantized.awq import AWQ
from h2o_export.checkpoints.quantized.compressed_tensors import CompressedTensors
from h2o_export.checkpoints.quantized.gptq import GPTQ
from h2o_export.checkpoints.quantized.grouped import Grouped
from h2o_export.checkpoints.quantized.method import Method
from h2o_export.checkpoints.safetensors import SafetensorsCheckpoint, read_json, tensor_files
from h2o_export.tensors import QuantizedTensor
from h2o_runtime.errors import CheckpointError, UnsupportedModelError
from h2o_runtime.files.inputs import confined

METHODS: Mapping[str, type[Method]] = MappingProxyType(
    {method.name: method for method in (AWQ, GPTQ, CompressedTensors)}
)

OWN_FILES = ("quantize_config.json", "quant_config.json")  # of older versions of AutoGPTQ and AutoAWQ


@dataclass(frozen=True)
class QuantizedCheckpoint(SafetensorsCheckpoint):
    """`method` unpacks packed matrices, one at a time; all other tensors are read as from any folder."""

    method: Method

    def unused(self, used: Collection[str]) -> frozenset[str]:
        """Further tensors of a packed module belong to it, except a bias. AutoGPTQ writes biases of zeros,
        which are ignored.
        """
        return frozenset(name for name in super().unused(used) if not self._belongs_to_packed(name))

    def _belongs_to_packed(self, name: str) -> bool:
        module, _, kind = name.rpartition(".")
        if self.method.integers(module, self.files) is None:
            return False
        return kind != "bias" or not bool(self.read(name).any())

    @classmethod
    def takes(cls, path: Path) -> bool:
        if not path.is_dir():
            return False
        try:
            settings = _settings(path)
            return settings is not None and settings.get("quant_method") != "mxfp4"  # read in any folder
        except CheckpointError:
            return False  # safetensors.py reports the error

    @classmethod
    def open(cls, path: Path, source: str) -> QuantizedCheckpoint:
        raw = read_json(path / "config.json")
        raw.pop("quantization_config", None)
        settings = _settings(path)
        config = ModelConfig.from_huggingface(raw)
        name = settings.get("quant_method") if isinstance(settings, dict) else None
        method = METHODS.get(str(name))
        if method is None:
            raise UnsupportedModelError(
                f"a quantized checkpoint (quantization_config.quant_method = {name!r}) is not supported; "
                f"supported methods are {', '.join(METHODS)}"
            )
        checkpoint = cls(path, source, config, tensor_files(path), {}, method(settings))
        checkpoint.check_tokenizer()
        checkpoint.check_packed_once()
        return checkpoint

    def check_packed_once(self) -> None:
        """Raises CheckpointError for a matrix that is stored twice: only one of the two belongs to the
        model.
        """
        for name in self.files:
            module, _, kind = name.rpartition(".")
            packed = self.method.integers(module, self.files) if kind == "weight" else None
            if packed not in (None, name):
                raise CheckpointError(
                    f"{self.source}: has '{name}' and the same matrix packed in '{packed}'; remove the one that is "
                    "not the model's, or download it again"
                )

    def check(self, tensors: Mapping[str, tuple[int, ...]]) -> None:
        """What packed tensors hold is known once they are read."""
        super().check({name: shape for name, shape in tensors.items() if self._packed_module(name) is None})

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Read one tensor: in its stored dtype, or in float32 if it is packed."""
        matrix = self._matrix(name)
        if matrix is None:
            return super().tensor(name, shape)
        if matrix.q.shape != shape:
            raise CheckpointError(
                f"{self.source}: tensor '{name}' has shape {list(matrix.q.shape)} unpacked, but config.json "
                f"implies {list(shape)}"
            )
        with np.errstate(all="ignore"):  # the code that stores the values checks for NaN
            return torch.from_numpy(matrix.dequantize())

    def blocks(self, name: str) -> QuantizedTensor | None:
        matrix = self._matrix(name)
        with np.errstate(all="ignore"):
            return None if matrix is None else matrix.blocks()

    def transformers_config(self) -> Any:
        config = super().transformers_config()
        config.__dict__.pop("quantization_config", None)  # its layers get the dequantized weights
        return config

    def _matrix(self, name: str) -> Grouped | None:
        module = self._packed_module(name)
        if module is None:
            return None
        try:
            with np.errstate(all="ignore"):
                return self.method.matrix(module, self.files, self._array)
        except (CheckpointError, UnsupportedModelError) as error:
            if str(error).startswith(str(self.path)):
                raise
            raise type(error)(f"{self.source}: tensor '{name}': {error}") from error
        except (ValueError, IndexError) as error:  # shapes that do not match
            raise CheckpointError(
                f"{self.source}: the shapes of the packed tensors of '{module}' do not match ({error}); "
                "download the checkpoint again"
            ) from error

    def _packed_module(self, name: str) -> str | None:
        """The module whose packed weight this is; None for other tensors."""
        module, _, kind = name.rpartition(".")
        packed = kind == "weight" and self.method.integers(module, self.files) is not None
        return module if packed else None

    def _array(self, name: str) -> NDArray[Any]:
        tensor = self.read(name)
        array: NDArray[Any] = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
        return array


def _settings(folder: Path) -> Any:
    """The `quantization_config`; None for a checkpoint that is not quantized. Raises CheckpointError.

    Before config.json had this key, AutoGPTQ and AutoAWQ wrote their own files, AutoAWQ with other keys.
    """
    settings = read_json(folder / "config.json").get("quantization_config")
    if settings is None and (folder / OWN_FILES[0]).is_file():
        settings = {"quant_method": GPTQ.name, **read_json(confined(folder, OWN_FILES[0], CheckpointError))}
    elif settings is None and (folder / OWN_FILES[1]).is_file():
        own = read_json(confined(folder, OWN_FILES[1], CheckpointError))
        settings = {"quant_method": AWQ.name, "bits": own.get("w_bit"), "version": own.get("version", "gemm")}
    return settings
