"""The shape of a model, as the runtime needs it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from h2o_runtime.errors import ConfigError
from h2o_runtime.limits import MAX_LAYERS, MAX_SIZE


@dataclass(frozen=True)
class AttentionShape:
    """What an attention provider must know of the model, fixed at load time.

    query_heads, kv_heads  Hq, Hkv
    head_size              d, of queries and keys
    scale                  of the dot products; it need not follow from d
    value_size             dv, of values and outputs; 0: as head_size
    window                 keys that a row sees at most, back from its own, itself included; 0: all
    softcap                what a tanh keeps scores below, before softmax; 0: nothing does
    """

    query_heads: int
    kv_heads: int
    head_size: int
    scale: float
    dtype: np.dtype[Any]
    value_size: int = 0
    window: int = 0
    softcap: float = 0.0

    def __post_init__(self) -> None:
        if not self.value_size:
            object.__setattr__(self, "value_size", self.head_size)

    @property
    def half(self) -> bool:
        """For native kernels: whether they store float16. Raises ValueError for what they do not store at all."""
        if self.dtype not in (np.float32, np.float16):
            raise ValueError(f"the native kernels store float32 or float16, not {self.dtype}")
        return self.dtype == np.float16


@dataclass(frozen=True)
class CacheRow:
    """What a layer's cache keeps of a token: `heads` keys of `size` elements, and as many values.

    shared  keys alone, of which values are a part
    """

    heads: int
    size: int
    shared: bool = False

    @property
    def elements(self) -> int:
        return self.heads * self.size * (1 if self.shared else 2)


class WeightSpec(BaseModel):
    """In what form a bundle holds its weights, and what they take on disk.

    projections  format of the matrices of layers: float32, float16, int8 or int4
    head         that of the head; where it is tied, of the embedding
    block_size   weights that share a scale, None for floats
    compensated  whether layers were rounded for the activations of a text, and not each weight to the nearest
    table_bytes  the embedding's, which a tied head shares; then `head_bytes` is 0
    layer_tables_bytes  those of embeddings that layers have of their own
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
    layer_tables_bytes: int = Field(default=0, ge=0)

    @property
    def quantized(self) -> bool:
        """Whether layers have integer weights."""
        return self.block_size is not None

    @property
    def total(self) -> int:
        others = self.other_bytes + self.layer_tables_bytes
        return self.projection_bytes + self.table_bytes + self.head_bytes + others


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


class StateSpec(BaseModel):
    """What a layer with a state keeps of all tokens before: a matrix a head, and the last inputs of a convolution.

    channels  of the convolution
    tail      its inputs before a token that it sees
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    channels: int = Field(gt=0, le=MAX_SIZE)
    tail: int = Field(gt=0, le=MAX_SIZE)


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


def rotation_names(table: int) -> tuple[str, str]:
    """The dense graphs' names for the cosines and sines of a table of angles; the first graph makes all
    tables.
    """
    number = f"_{table}" if table else ""
    return f"cos{number}", f"sin{number}"


LATER_FIELDS = ("window", "softcap", "rotation", "sinks", "gate_size", "state", "source", "lends")


class LayerSpec(BaseModel):
    """One layer's attention: its kind, what its cache keeps of a token, and what stands at its dense graphs.

    kind         a key of h2o_runtime.layers.LAYERS
    query_heads  Hq
    kv_heads     Hkv, of the cache
    head_size    d, of a key in the cache
    value_size   dv, of a value as attention reads it from the cache
    shared       whether values are the first dv numbers of keys, and nothing else is stored
    query_size   of a head's query, as the dense graph makes it
    out_size     of a head's attention output, as the next dense graph takes it
    rotary_size  elements of a head that are rotated by position
    scale        of the dot products
    window       keys that a row sees at most, back from its own, itself included; 0: all
    softcap      what a tanh keeps scores below, before softmax; 0: nothing does
    rotation     which of the model's tables of angles it is rotated by: see `rotation_names`
    sinks        of each query head a score that takes part in the softmax and has no key; empty: there are none
    gate_size    elements of a token's gate, which its dense graph hands to the next one beside the residual stream
    state        what it keeps in place of rows of a cache: k and v are of new tokens alone then, v of Hq heads
    source       the earlier layer whose rows it reads, as it has no keys and values of its own; None: its own
    lends        whether it is the source of later layers, so that it keeps rows beyond its window too
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str
    query_heads: int = Field(gt=0, le=MAX_SIZE)
    kv_heads: int = Field(gt=0, le=MAX_SIZE)
    head_size: int = Field(gt=0, le=MAX_SIZE)
    value_size: int = Field(gt=0, le=MAX_SIZE)
    shared: bool = False
    query_size: int = Field(gt=0, le=MAX_SIZE)
    out_size: int = Field(gt=0, le=MAX_SIZE)
    rotary_size: int = Field(ge=0, le=MAX_SIZE)
    scale: float = Field(gt=0)
    window: int = Field(default=0, ge=0)
    softcap: float = Field(default=0.0, ge=0)
    rotation: int = Field(default=0, ge=0, lt=MAX_LAYERS)
    sinks: tuple[float, ...] = ()
    gate_size: int = Field(default=0, ge=0, le=MAX_SIZE)
    state: StateSpec | None = None
    source: int | None = Field(default=None, ge=0, lt=MAX_LAYERS)
    lends: bool = False

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Manifests of layers without the later fields stay readable to earlier versions."""
        written: dict[str, Any] = write(self)
        for field in LATER_FIELDS:
            if getattr(self, field) == type(self).model_fields[field].default:
                written.pop(field)
        return written

    @model_validator(mode="after")
    def _one_sink_a_head(self) -> LayerSpec:
        if self.sinks and len(self.sinks) != self.query_heads:
            raise ValueError(f"{len(self.sinks)} sinks for {self.query_heads} query heads")
        return self

    @property
    def has_rows(self) -> bool:
        """Whether a cache keeps rows of its own."""
        return self.state is None and self.source is None

    @property
    def row(self) -> CacheRow:
        return CacheRow(self.kv_heads, self.head_size, self.shared)

    @property
    def sees_all(self) -> bool:
        """Whether it attends to all tokens before: such layers are what policies are for."""
        return not self.window and self.state is None

    def attention(self, dtype: str) -> AttentionShape:
        """What an attention provider for this layer needs to know."""
        return AttentionShape(
            self.query_heads,
            self.kv_heads,
            self.head_size,
            self.scale,
            np.dtype(dtype),
            self.value_size,
            self.window,
            self.softcap,
        )


class ModelSpec(BaseModel):
    """The model's shape, as the runtime needs it.

    kv_heads, head_size, scale  of the first layer: see `LayerSpec`
    latent                      of models that have such layers
    layer_embedding             elements of a token's embedding that each layer has of its own; 0: none has. The
                                dense graph behind a layer looks it up, and reads what begins the residual stream
    layer_specs                 of each layer; empty where all are alike, and what is said above tells all of them
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
    weights: WeightSpec | None = None  # None in bundles of versions without this choice
    latent: LatentSpec | None = None
    experts: ExpertsSpec | None = None
    layer_embedding: int = Field(default=0, ge=0, le=MAX_SIZE)
    layer_specs: tuple[LayerSpec, ...] = ()

    @model_validator(mode="after")
    def _one_spec_a_layer(self) -> ModelSpec:
        if self.layer_specs and len(self.layer_specs) != self.layers:
            raise ValueError(f"layer_specs has {len(self.layer_specs)} entries for {self.layers} layers")
        return self

    @model_validator(mode="after")
    def _sources_lend_their_rows(self) -> ModelSpec:
        for layer, spec in enumerate(self.layer_specs):
            if spec.source is None:
                continue
            source = self.layer_specs[spec.source] if spec.source < layer else spec
            if not (source.lends and source.has_rows and source.row == spec.row):
                raise ValueError(f"layer {layer} cannot read the rows of layer {spec.source}")
            if any(one.state for one in self.layer_specs):
                raise ValueError("layers without keys stand beside layers with a state")
        return self

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Manifests of models with equal layers stay readable to earlier versions."""
        written: dict[str, Any] = write(self)
        if not self.layer_specs:
            written.pop("layer_specs", None)
        if not self.layer_embedding:
            written.pop("layer_embedding", None)
        return written

    def layer(self, index: int) -> LayerSpec:
        return self.layer_specs[index] if self.layer_specs else self._any_layer

    @property
    def each_layer(self) -> tuple[LayerSpec, ...]:
        """Of every layer, in order."""
        return self.layer_specs or (self._any_layer,) * self.layers

    @property
    def _any_layer(self) -> LayerSpec:
        """Any layer of a model whose layers are alike: grouped queries, or latents."""
        latent = self.latent
        return LayerSpec(
            kind="latent" if latent else "grouped-query",
            query_heads=self.query_heads,
            kv_heads=self.kv_heads,
            head_size=self.head_size,
            value_size=latent.rank if latent else self.head_size,
            shared=latent is not None,
            query_size=latent.nope_size + latent.rope_size if latent else self.head_size,
            out_size=latent.value_size if latent else self.head_size,
            rotary_size=latent.rope_size if latent else self.head_size,
            scale=self.scale,
        )

    @property
    def quantized(self) -> bool:
        """Whether the layers' weights are integers."""
        return self.weights is not None and self.weights.quantized

    @property
    def weight_bytes(self) -> int:
        """All weights on disk, each counted once."""
        return self.weights.total if self.weights else self.parameters * np.dtype(self.dtype).itemsize

    @property
    def token_bytes(self) -> int:
        """Bytes of a token in the cache, in all layers, in the model's dtype."""
        return sum(spec.row.elements for spec in self.each_layer if spec.has_rows) * self._item

    @property
    def read_bytes(self) -> int:
        """The same as all layers read it: once more for each that reads an earlier layer's rows."""
        return sum(spec.row.elements for spec in self.each_layer if not spec.state) * self._item

    @property
    def lends_rows(self) -> bool:
        """Whether some layers read the rows of earlier ones."""
        return any(spec.source is not None for spec in self.each_layer)

    @property
    def _item(self) -> int:
        return np.dtype(self.dtype).itemsize

    @property
    def under_policies(self) -> ModelSpec:
        """The model of the layers that prefill and decode policies handle: those that see all, if any."""
        return self._of(tuple(spec for spec in self.each_layer if spec.sees_all))

    @property
    def with_rows(self) -> ModelSpec:
        """The layers that a cache keeps rows of, as a model: those without a state."""
        return self._of(tuple(spec for spec in self.each_layer if spec.state is None))

    def _of(self, specs: tuple[LayerSpec, ...]) -> ModelSpec:
        if len(specs) == self.layers:
            return self
        first = specs[0] if specs else self.layer(0)
        own = {name: getattr(first, name) for name in ("query_heads", "kv_heads", "head_size", "scale")}
        return self.model_copy(update={"layers": len(specs), "layer_specs": specs, **own})

    @property
    def has_sinks(self) -> bool:
        return any(spec.sinks for spec in self.each_layer)

    @property
    def windows(self) -> tuple[int, ...]:
        """The different window widths."""
        return tuple(sorted({spec.window for spec in self.each_layer} - {0}))

    @property
    def policy_layers(self) -> tuple[int, ...]:
        """For every layer: how many layers of `under_policies` come before it, which is its own number there."""
        return tuple(accumulate((spec.sees_all for spec in self.each_layer[:-1]), initial=0))

    @property
    def attention(self) -> AttentionShape:
        """The shape for the first layer's attention provider."""
        return self.layer(0).attention(self.dtype)

    @property
    def one_row(self) -> bool:
        """Whether all layers cache the same row sizes, with the same number of query heads."""
        return len({(spec.row, spec.query_heads) for spec in self.each_layer}) <= 1

    @property
    def rotary_sizes(self) -> tuple[int, ...]:
        """For each table of angles: the rotated elements of a head, in the layers with the most."""
        sizes = [0] * (1 + max(spec.rotation for spec in self.each_layer))
        for spec in self.each_layer:
            sizes[spec.rotation] = max(sizes[spec.rotation], spec.rotary_size)
        return tuple(sizes)

    def score_heads(self, kind: Literal["kv", "query"]) -> int:
        """Hs: the number of heads with their own scores and list. Raises ConfigError if layers differ in
        it.
        """
        counts = {spec.kv_heads if kind == "kv" else spec.query_heads for spec in self.each_layer}
        if len(counts) > 1:
            raise ConfigError(
                f"the layers of this model have {', '.join(map(str, sorted(counts)))} {kind} heads, and one list "
                f"for each {kind} head needs as many in all layers: give each query head a list with "
                "`score_heads=query`, or use `policy=full`",
                field="score_heads",
            )
        return counts.pop() if counts else self.kv_heads if kind == "kv" else self.query_heads
