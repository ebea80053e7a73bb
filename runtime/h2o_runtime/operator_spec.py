"""What the table of operators is made of: an operator, its tensors and its attributes.

This module imports nothing from the package: see h2o_runtime.operators.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Literal


@dataclass(frozen=True)
class TensorArgument:
    """`optional`: kernels may be called without it. `updated`: kernels may write to this input.

    `in_place`, for an output: the input whose memory it may use; it does so if a provider's caller names no output.
    """

    name: str
    dtype: Literal["T", "float32", "int32", "int64"]
    shape: tuple[str, ...]  # sizes by name, or a number
    optional: bool = False
    updated: bool = False
    in_place: str = ""

    def __str__(self) -> str:
        """Such as `colsum? float32 [n, Hs]`; `?` if it is optional."""
        return f"{self.name}{'?' * self.optional} {self.dtype} [{', '.join(self.shape)}]"


def model_tensor(name: str, shape: str) -> TensorArgument:
    """A tensor of dtype T. `shape` names its sizes, such as "n Hq d"; so for the three functions after it."""
    return TensorArgument(name, "T", tuple(shape.split()))


def float_tensor(name: str, shape: str) -> TensorArgument:
    return TensorArgument(name, "float32", tuple(shape.split()))


def int32_tensor(name: str, shape: str) -> TensorArgument:
    return TensorArgument(name, "int32", tuple(shape.split()))


def int64_tensor(name: str, shape: str) -> TensorArgument:
    return TensorArgument(name, "int64", tuple(shape.split()))


@dataclass(frozen=True)
class Attribute:
    """`least` is an integer's lower bound; without one it is a float, above 0 or `default`.

    `gives` is the size that the attribute is, or is a summand of, if no input shows that size. `tiles` is the
    size that counts the tiles of n tokens; the attribute is their length. `of_model`: an absent attribute is
    the `AttentionShape` field of that name. `default` is the value if a graph's node omits it; None: all
    nodes have it.
    """

    name: str
    least: int | None = None
    gives: str = ""
    tiles: str = ""
    of_model: bool = False
    default: int | None = None


@dataclass(frozen=True, eq=False)
class Operator:
    """`plugin`: graphs that become engines contain it, so TensorRT has a plugin for it."""

    name: str
    inputs: tuple[TensorArgument, ...]
    outputs: tuple[TensorArgument, ...] = ()
    attributes: tuple[Attribute, ...] = ()
    kernels: tuple[Literal["cpu", "cuda"], ...] = ("cpu", "cuda")  # what has one
    plugin: bool = True
    sinks: bool = False  # whether a call on a GPU may bring `sinks` [Hq], float32: see attention/sinks.py

    def __str__(self) -> str:
        """Its kernels, tensors and attributes, a line each."""
        lines = [f"on   {', '.join(self.kernels)}", *(f"in   {tensor}" for tensor in self.inputs)]
        lines += [f"out  {tensor}" for tensor in self.outputs]
        lines += [f"with {attribute.name}" for attribute in self.attributes]
        return "\n    ".join([self.name, *lines])

    @cached_property
    def method(self) -> str:
        """Its name in Python and in C, such as memory_gather."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<!^)(?=[A-Z][a-z])", "_", self.name).lower()

    @cached_property
    def tensors(self) -> tuple[TensorArgument, ...]:
        return self.inputs + self.outputs

    @cached_property
    def input_names(self) -> tuple[str, ...]:
        return tuple(tensor.name for tensor in self.inputs)

    @cached_property
    def output_names(self) -> tuple[str, ...]:
        return tuple(tensor.name for tensor in self.outputs)

    @cached_property
    def attribute_names(self) -> tuple[str, ...]:
        return tuple(attribute.name for attribute in self.attributes)
