"""A Hugging Face folder whose `config.json` has a `quantization_config`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from h2o_export.checkpoints.quantized.awq import AWQ
from h2o_export.checkpoints.quantized.compressed_tensors import CompressedTensors
from h2o_export.checkpoints.quantized.gptq import GPTQ
from h2o_export.checkpoints.quantized.grouped import Grouped
from h2o_export.checkpoints.quantized.method import Method
from h2o_export.checkpoints.safetensors import SafetensorsCheckpoint, read_json, tensor_files
from h2o_export.config import ModelConfig
from h2o_runtime.errors import CheckpointError, UnsupportedModelError

if TYPE_CHECKING:
    from h2o_export.formats.quantized import QuantizedTensor

METHODS: Mapping[str, type[Method]] = MappingProxyType(
    {method.name: method for method in (AWQ, GPTQ, CompressedTensors)}
)


@dataclass(frozen=True)
class QuantizedCheckpoint(SafetensorsCheckpoint):
    """Packed matrices are unpacked by `method`, one at a time; everything else is read as from any folder."""

    method: Method

    def names(self) -> frozenset[str]:
        """None: which of the packed tensors belong to which matrix, the method knows."""
        return frozenset()

    @classmethod
    def takes(cls, path: Path) -> bool:
        if not path.is_dir():
            return False
        try:
            return read_json(path / "config.json").get("quantization_config") is not None
        except CheckpointError:
            return False  # for the plain kind to complain about

    @classmethod
    def open(cls, path: Path, source: str) -> QuantizedCheckpoint:
        raw = read_json(path / "config.json")
        settings = raw.pop("quantization_config")
        config = ModelConfig.from_huggingface(raw)
        name = settings.get("quant_method") if isinstance(settings, dict) else None
        method = METHODS.get(str(name))
        if method is None:
            raise UnsupportedModelError(
                f"a quantized checkpoint (quantization_config.quant_method = {name!r}) is not supported; "
                f"those by {', '.join(METHODS)} are"
            )
        checkpoint = cls(path, source, config, tensor_files(path), method(settings))
        checkpoint.check_tokenizer()
        return checkpoint

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Read one tensor: in its stored dtype, or in float32 where it is packed."""
        matrix = self._matrix(name)
        if matrix is None:
            return super().tensor(name, shape)
        if matrix.q.shape != shape:
            raise CheckpointError(
                f"{self.source}: tensor '{name}' has shape {list(matrix.q.shape)} unpacked, but config.json "
                f"implies {list(shape)}"
            )
        return torch.from_numpy(matrix.dequantize())

    def blocks(self, name: str) -> QuantizedTensor | None:
        matrix = self._matrix(name)
        return None if matrix is None else matrix.blocks()

    def transformers_config(self) -> Any:
        config = super().transformers_config()
        del config.quantization_config  # its layers get the dequantized weights
        return config

    def _matrix(self, name: str) -> Grouped | None:
        module, _, kind = name.rpartition(".")
        if kind != "weight" or not self.method.packs(module, self.files):
            return None
        try:
            return self.method.matrix(module, self.files, self._array)
        except (CheckpointError, UnsupportedModelError) as error:
            if str(error).startswith(str(self.path)):
                raise
            raise type(error)(f"{self.source}: tensor '{name}': {error}") from error
        except (ValueError, IndexError) as error:  # shapes that do not fit each other
            raise CheckpointError(
                f"{self.source}: the packed tensors of '{module}' do not fit each other: {error}"
            ) from error

    def _array(self, name: str) -> NDArray[Any]:
        tensor = self.read(name)
        array: NDArray[Any] = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
        return array
