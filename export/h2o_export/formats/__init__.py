"""Weight formats by name. A new format is a file in this folder and a line in `FORMATS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, TypeAlias

import torch

from h2o_export.formats.blocks import BLOCK_SIZES, Blocks
from h2o_export.formats.floats import Floats
from h2o_export.formats.offsets import OffsetBlocks
from h2o_export.formats.weight_format import WeightFormat
from h2o_export.tensors import Integers
from h2o_runtime.errors import ConfigError
from h2o_runtime.model_spec import ModelSpec

__all__ = [
    "BLOCK_SIZES",
    "FLOATS",
    "FORMATS",
    "STORED",
    "MatrixFormats",
    "WeightFormat",
    "choose_formats",
    "formats_of",
    "stored_format",
]

DType: TypeAlias = Literal["float32", "float16"]
BLOCK_SIZE = 32  # also of GGUF; from the table in docs/weights.md

# By the dtype of a model: the format of norms, biases and other non-matrices, whatever the matrices' format.
FLOATS: Mapping[str, Floats] = MappingProxyType(
    {
        "float32": Floats("float32", torch.float32),
        "float16": Floats("float16", torch.float16),
    }
)
# For a dtype and a block size; for a lookup table or for a matrix that MatMul reads. "float" is the model's
# dtype.
FORMATS: Mapping[str, Callable[[DType, int, bool], WeightFormat]] = MappingProxyType(
    {
        "float": lambda dtype, block_size, table: FLOATS[dtype],
        "int8": lambda dtype, block_size, table: Blocks(8, block_size, dtype, table),
        "int4": lambda dtype, block_size, table: Blocks(4, block_size, dtype, table),
        "int4+offset": lambda dtype, block_size, table: OffsetBlocks(4, block_size, dtype, table),
    }
)


STORED = "stored"  # in place of a format's name: each matrix as the checkpoint has it


@dataclass(frozen=True)
class MatrixFormats:
    """projections: of layers, but for those that are `named`. table: the embedding, and a tied head. head: a
    separate head.
    """

    projections: WeightFormat
    table: WeightFormat
    head: WeightFormat
    named: Mapping[str, WeightFormat] = field(default_factory=dict)

    @property
    def block_size(self) -> int | None:
        """Of layers; None: all their matrices are floats."""
        sizes = (form.block_size for form in (self.projections, *self.named.values()))
        return next((size for size in sizes if size is not None), None)

    def of_layers(self, name: str) -> WeightFormat:
        """Of a layer's matrix."""
        return self.named.get(name, self.projections)


def choose_formats(
    dtype: DType,
    weights: str,
    block_size: int,
    head_weights: str | None,
    tied: bool,
    named: Mapping[str, str] = MappingProxyType({}),
) -> MatrixFormats:
    """`weights` and `head_weights` are keys of FORMATS, as are those of the matrices `named`.

    Raises ConfigError for a choice that ONNX has no operator for.

    ONNX's Gather has no int4, so a table has at least 8 bits. So does a head, unless `head_weights` asks for
    less: it is read once per token, and its rounding error goes directly into the logits.
    """
    floats = {weights, *named.values()} == {"float"}
    head = head_weights or ("float" if floats else "int8")
    if tied and head == "int4":
        raise ConfigError(
            "head must be int8 or float if the head is tied to the embedding: ONNX cannot look up rows of "
            "int4",
            field="head",
        )
    table = head if tied else ("float" if floats else "int8")
    return MatrixFormats(
        projections=FORMATS[weights](dtype, block_size, False),
        table=FORMATS[table](dtype, block_size, True),
        head=FORMATS[head](dtype, block_size, False),
        named={name: FORMATS[own](dtype, block_size, False) for name, own in named.items()},
    )


def formats_of(model: ModelSpec) -> MatrixFormats | None:
    """The format of a bundle; None if all its weights are floats."""
    weights = model.weights
    if weights is None or weights.block_size is None:
        return None
    projections, head = (name if name in FORMATS else "float" for name in (weights.projections, weights.head))
    named = {name: own if own in FORMATS else "float" for name, own in weights.named.items()}
    return choose_formats(model.dtype, projections, weights.block_size, head, model.tied, named)


def stored_format(found: Integers | None, block_size: int) -> str:
    """The key of FORMATS that keeps what a checkpoint holds of a matrix, or comes next to it."""
    if found is None:
        return "float"
    whole = found.block_size is not None and found.block_size % block_size == 0
    if found.bits == 8 or not whole:
        return "int8"
    return "int4+offset" if found.offsets else "int4"
