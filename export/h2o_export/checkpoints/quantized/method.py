"""The interface of packing methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from h2o_export.checkpoints.quantized.grouped import Grouped

# Reads a tensor by its full name: 16-bit floats as float32, integers unchanged.
Read = Callable[[str], NDArray[Any]]


class Method(ABC):
    """A way to pack a linear module's matrix into several tensors. K inputs, N outputs, G groups."""

    name: ClassVar[str]  # `quant_method` of config.json

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """settings: the object `quantization_config`. Raises UnsupportedModelError for unsupported
        settings.
        """
        self.settings = settings

    def integers(self, module: str, names: Mapping[str, Any]) -> str | None:
        """The tensor with the module's integers; None if the module has a float weight. `names` are those of
        all tensors.
        """
        return f"{module}.qweight" if f"{module}.qweight" in names else None

    @abstractmethod
    def matrix(self, module: str, names: Mapping[str, Any], read: Read) -> Grouped:
        """The module's weight. Raises CheckpointError."""


def as_columns(scales: NDArray[Any]) -> NDArray[np.float32]:
    """Scales [G, N] as [N, G]."""
    return np.ascontiguousarray(scales.T, np.float32)
