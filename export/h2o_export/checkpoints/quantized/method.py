"""What a method of packing is asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from h2o_export.checkpoints.quantized.grouped import Grouped

# Reads a tensor by its whole name: 16-bit floats come as float32, integers as they are.
Read = Callable[[str], NDArray[Any]]


class Method(ABC):
    """A way to pack the matrix of a linear module into several tensors. K inputs, N outputs, G groups."""

    name: ClassVar[str]  # `quant_method` of config.json

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """settings: the object `quantization_config`. Raises UnsupportedModelError for what is not read here."""
        self.settings = settings

    @abstractmethod
    def integers(self, module: str, names: Mapping[str, Any]) -> str | None:
        """The tensor with the module's integers; None where it is not packed, and its weight a tensor of floats.

        `names` are those of all tensors.
        """

    @abstractmethod
    def matrix(self, module: str, names: Mapping[str, Any], read: Read) -> Grouped:
        """The module's weight. Raises CheckpointError."""


def as_columns(scales: NDArray[Any]) -> NDArray[np.float32]:
    """Scales [G, N] as [N, G]."""
    return np.ascontiguousarray(scales.T, np.float32)
