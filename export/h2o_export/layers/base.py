"""What a layer kind is: the part of a decoder layer between its norm and the cache, and back from attention."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import nn

from h2o_export.config import ModelConfig
from h2o_runtime.attention import AttentionShape
from h2o_runtime.manifest import TensorSpec


class LayerKind(ABC):
    """One kind of attention, as dense graphs and everything about them need it. n tokens, D hidden size."""

    name: ClassVar[str]

    @abstractmethod
    def shape(self, config: ModelConfig, dtype: str) -> AttentionShape:
        """What operators and caches are made for."""

    @abstractmethod
    def rotary_size(self, config: ModelConfig) -> int:
        """How many elements of a head are rotated by position."""

    @abstractmethod
    def projection(self, config: ModelConfig) -> nn.Module:
        """x [n, D], cos and sin float32 [n, rotary_size / 2] → the tensors of `interface`, in that order."""

    @abstractmethod
    def output(self, config: ModelConfig) -> nn.Module:
        """What attention gave, a row a token, → [n, D]. A dense graph has it as `o_proj`."""

    @abstractmethod
    def interface(self, config: ModelConfig, dtype: str) -> tuple[TensorSpec, ...]:
        """What a dense graph gives to attention and cache."""

    @abstractmethod
    def attended(self, config: ModelConfig, dtype: str) -> TensorSpec:
        """What a dense graph takes from attention."""

    @abstractmethod
    def checkpoint_name(self, parameter: str) -> str:
        """Of a parameter of `projection`, or of `output` with o_proj before it: its name in a layer's tensors."""

    @abstractmethod
    def reference(self, given: Mapping[str, NDArray[Any]], scale: float) -> NDArray[np.float64]:
        """Plain causal attention in float64, for comparisons: tensors of `interface` → that of `attended`.

        Of latents, k and v are what they expand to.
        """


def causal_attention(q: NDArray[Any], k: NDArray[Any], v: NDArray[Any], scale: float) -> NDArray[np.float64]:
    """q [n, Hq, d], k [n, Hkv, d], v [n, Hkv, dv] → [n, Hq, dv], every row seeing those up to itself."""
    q, k, v = (array.astype(np.float64) for array in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = np.einsum("ihd,jhd->hij", q, k) * scale
    scores = np.where(np.tri(len(q), dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    out: NDArray[np.float64] = np.einsum("hij,jhd->ihd", weights / weights.sum(axis=-1, keepdims=True), v)
    return out
