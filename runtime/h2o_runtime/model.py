"""The shape of a model, as everything at run time needs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from h2o_runtime.limits import MAX_LAYERS, MAX_SIZE


@dataclass(frozen=True)
class AttentionShape:
    """What an attention provider must know of the model, fixed at load time.

    query_heads, kv_heads  Hq, Hkv
    head_size              d, of queries and keys
    scale                  of the dot products; it need not follow from d
    value_size             dv, of values and outputs; 0: as head_size
    """

    query_heads: int
    kv_heads: int
    head_size: int
    scale: float
    dtype: np.dtype[Any]
    value_size: int = 0

    def __post_init__(self) -> None:
        if not self.value_size:
            object.__setattr__(self, "value_size", self.head_size)

    @property
    def half(self) -> bool:
        """For native kernels: whether they store float16. Raises ValueError for what they do not store at all."""
        if self.dtype not in (np.float32, np.float16):
            raise ValueError(f"the native kernels store float32 or float16, not {self.dtype}")
        return self.dtype == np.float16


class WeightSpec(BaseModel):
    """In what form a bundle holds its weights, and what they take on disk.

    projections  format of the matrices of layers: float32, float16, int8 or int4
    head         that of the head; where it is tied, of the embedding
    block_size   weights that share a scale, None for floats
    compensated  whether layers were rounded for the activations of a text, and not each weight to the nearest
    table_bytes  the embedding's, which a tied head shares; then `head_bytes` is 0
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    projections: str
    head: str
    block_size: int | None = None
    compensated: bool = False
    projection_elements: int = Field(ge=0)
    projection_bytes: int = Field(ge=0)
    table_bytes: int = Field(ge=0)
    head_bytes: int = Field(ge=0)
    other_bytes: int = Field(ge=0)

    @property
    def quantized(self) -> bool:
        """Whether layers are integers."""
        return self.block_size is not None

    @property
    def total(self) -> int:
        return self.projection_bytes + self.table_bytes + self.head_bytes + self.other_bytes


class LatentSpec(BaseModel):
    """Sizes of latent attention: keys and values of every head are linear in one latent a token.

    rank        r, elements of the latent
    nope_size   dn, of a head's query and key, not rotated
    rope_size   dr, rotated; the key's are shared by all heads, and lie in the cache behind the latent
    value_size  dv, of a head's value
    query_rank  of the low-rank step that makes queries; None: there is none
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    rank: int = Field(gt=0, le=MAX_SIZE)
    nope_size: int = Field(gt=0, le=MAX_SIZE)
    rope_size: int = Field(gt=0, le=MAX_SIZE)
    value_size: int = Field(gt=0, le=MAX_SIZE)
    query_rank: int | None = Field(default=None, gt=0, le=MAX_SIZE)


class ExpertsSpec(BaseModel):
    """Mixtures of experts: of `count` in each of `layers` layers, `chosen` see a token, and the shared ones all.

    size, shared_size  rows inside one, and inside the shared ones together
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    layers: int = Field(gt=0, le=MAX_LAYERS)
    count: int = Field(gt=0, le=MAX_SIZE)
    chosen: int = Field(gt=0, le=MAX_SIZE)
    size: int = Field(gt=0, le=MAX_SIZE)
    shared_size: int = Field(ge=0, le=MAX_SIZE)


class ModelSpec(BaseModel):
    """The model's shape, as the runtime needs it.

    kv_heads, head_size  of the cache; that of latents has one head, of r + dr elements
    """

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
    weights: WeightSpec | None = None  # None in bundles from before there was a choice
    latent: LatentSpec | None = None
    experts: ExpertsSpec | None = None

    @property
    def quantized(self) -> bool:
        """Whether the layers' weights are integers."""
        return self.weights is not None and self.weights.quantized

    @property
    def weight_bytes(self) -> int:
        """All weights on disk, each once."""
        return self.weights.total if self.weights else self.parameters * np.dtype(self.dtype).itemsize

    @property
    def token_bytes(self) -> int:
        """What the cache holds of a token in all layers, in the model's dtype."""
        return self.layers * self.row_elements * np.dtype(self.dtype).itemsize

    @property
    def attention(self) -> AttentionShape:
        """The part that attention providers are made for."""
        values = self.latent.rank if self.latent else self.head_size
        return AttentionShape(
            self.query_heads, self.kv_heads, self.head_size, self.scale, np.dtype(self.dtype), values
        )

    @property
    def expanded(self) -> AttentionShape:
        """The same for keys and values that every head has of its own, made of latents."""
        assert self.latent is not None
        return AttentionShape(
            self.query_heads,
            self.query_heads,
            self.query_size,
            self.scale,
            np.dtype(self.dtype),
            self.out_size,
        )

    @property
    def query_size(self) -> int:
        """Elements of a head's query, as dense graphs make it."""
        return self.latent.nope_size + self.latent.rope_size if self.latent else self.head_size

    @property
    def out_size(self) -> int:
        """Elements of a head's attention output, as dense graphs take it."""
        return self.latent.value_size if self.latent else self.head_size

    @property
    def rotary_size(self) -> int:
        """Elements of a head that are rotated."""
        return self.latent.rope_size if self.latent else self.head_size

    @property
    def row_elements(self) -> int:
        """What the cache holds of a token in one layer: keys and values, or the latent alone."""
        return self.kv_heads * self.head_size * (1 if self.latent else 2)

    def score_heads(self, kind: Literal["kv", "query"]) -> int:
        """Hs: how many heads have a score and a list of their own."""
        return self.kv_heads if kind == "kv" else self.query_heads
