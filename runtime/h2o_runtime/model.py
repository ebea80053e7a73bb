"""The shape of a model, as everything at run time needs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from h2o_runtime.limits import MAX_LAYERS, MAX_SIZE


@dataclass(frozen=True)
class AttentionShape:
    """What an attention provider must know of the model, fixed at load time."""

    query_heads: int
    kv_heads: int
    head_size: int
    scale: float
    dtype: np.dtype[Any]

    @property
    def half(self) -> bool:
        """For native kernels: whether they store float16. Raises ValueError for what they do not store at all."""
        if self.dtype not in (np.float32, np.float16):
            raise ValueError(f"the native kernels store float32 or float16, not {self.dtype}")
        return self.dtype == np.float16


class ModelSpec(BaseModel):
    """The model's shape, as the runtime needs it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    family: str
    hidden_size: int = Field(gt=0, le=MAX_SIZE)
    layers: int = Field(gt=0, le=MAX_LAYERS)
    query_heads: int = Field(gt=0, le=MAX_SIZE)
    kv_heads: int = Field(gt=0, le=MAX_SIZE)
    head_size: int = Field(gt=0, le=MAX_SIZE)
    intermediate_size: int = Field(gt=0, le=MAX_SIZE)
    vocab_size: int = Field(gt=0, le=MAX_SIZE)
    max_position_embeddings: int = Field(gt=0)
    parameters: int = Field(gt=0)
    tied: bool
    scale: float = Field(gt=0)
    dtype: Literal["float32", "float16"]

    @property
    def attention(self) -> AttentionShape:
        """The part that attention providers are made for."""
        return AttentionShape(
            self.query_heads, self.kv_heads, self.head_size, self.scale, np.dtype(self.dtype)
        )

    def score_heads(self, kind: Literal["kv", "query"]) -> int:
        """Hs: how many heads have a score and a list of their own."""
        return self.kv_heads if kind == "kv" else self.query_heads
