"""What an attention graph is to exporter and comparison."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from h2o_export.attention_graphs.graph import AttentionGraph, row_size
from h2o_runtime.attention import AttentionProvider, AttentionShape
from h2o_runtime.devices import Device, Tensor
from h2o_runtime.model_spec import ModelSpec

Feed: TypeAlias = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Room:
    """Sizes of inputs that a graph is compared on.

    rows      of the caches that are in use
    capacity  all rows of the caches; an engine takes those that it was built for, and no others
    batch     most rows of a call
    """

    rows: int
    capacity: int
    batch: int


@dataclass(frozen=True)
class OperatorCall:
    """A graph's inputs on the host, its outputs on the device, and who is to fill them."""

    provider: AttentionProvider
    device: Device
    feed: Feed
    out: Mapping[str, Tensor]

    def put(self, *names: str) -> tuple[Tensor, ...]:
        """Copies of inputs on the device."""
        return tuple(put(self.device, self.feed[name]) for name in names)


class AttentionStep(ABC):
    """One attention graph: what stands in it, inputs to compare it on, and its work by a provider's operators."""

    name: ClassVar[str]

    def own_shape(self, model: ModelSpec) -> AttentionShape:
        """Of the layers that it is for: those under policies."""
        return model.under_policies.attention

    @abstractmethod
    def graph(self, shape: AttentionShape) -> AttentionGraph:
        """For models of a shape."""

    @abstractmethod
    def feed(self, shape: AttentionShape, room: Room, draw: np.random.Generator) -> Feed:
        """Random inputs of a call as it really comes."""

    @abstractmethod
    def compute(self, call: OperatorCall) -> None:
        """Fill `call.out` from `call.feed` with the operators that stand in the graph."""


def put(device: Device, array: NDArray[Any]) -> Tensor:
    """A copy on the device."""
    tensor = device.empty(array.shape, array.dtype)
    device.upload(array, tensor)
    return tensor


def normal(
    draw: np.random.Generator,
    shape: AttentionShape,
    rows: int,
    heads: int,
    scale: float = 1.0,
    size: int | None = None,
) -> NDArray[Any]:
    """Queries or keys [rows, heads, d] of a model's shape and dtype, or what has `size` elements."""
    row = (rows, heads, size or shape.head_size)
    values: NDArray[Any] = (draw.standard_normal(row) * scale).astype(shape.dtype)
    return values


def caches(draw: np.random.Generator, shape: AttentionShape, capacity: int) -> Feed:
    """k_cache and v_cache [capacity, Hkv, d]."""
    return {
        name: normal(draw, shape, capacity, shape.kv_heads, size=row_size(name, shape))
        for name in ("k_cache", "v_cache")
    }
