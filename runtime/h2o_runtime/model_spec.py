"""The shape of a model, as the runtime needs it."""

from __future__ import annotations

from itertools import accumulate
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from h2o_runtime.head_counts import HeadCounts
from h2o_runtime.layer_spec import AttentionShape, LayerSpec, Spec
from h2o_runtime.limits import MAX_LAYERS, MAX_SIZE

DRAFTED_SHARE, LEAST_DRAFTED = 4, 32_768  # of a vocabulary: see `ModelSpec.drafted_tokens`


class FormatShare(Spec):
    """What matrices of layers have one format: their number, how many of them are integers that the checkpoint's
    files hold unchanged, and the number of weights.
    """

    matrices: int = Field(ge=0)
    kept: int = Field(ge=0)
    elements: int = Field(ge=0)


class WeightSpec(Spec):
    """The format of a bundle's weights, and their size on disk.

    projections  format of the matrices of layers, or of most of them: float32, float16, int8, int4 or int4+offset
    named        formats of the other matrices of layers, by the names that transformers gives them
    formats      of matrices of layers, with their shares
    head         format of the head; if it is tied, of the embedding
    block_size   weights that share a scale, None for floats
    compensated  whether layers were rounded for the activations of a text, or each weight to nearest
    table_bytes  of the embedding, which a tied head shares; then `head_bytes` is 0
    layer_tables_bytes  of embeddings of single layers
    """

    projections: str
    named: dict[str, str] = Field(default_factory=dict)
    formats: dict[str, FormatShare] = Field(default_factory=dict)
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
    def shares(self) -> str:
        """Formats of layers' matrices, the commonest first, with their shares of the weights."""
        formats = sorted(self.formats.items(), key=lambda item: -item[1].elements)
        whole = sum(share.elements for _, share in formats)
        if len(formats) < 2:
            return self.projections
        return ", ".join(f"{share.elements / whole:.0%} {name}" for name, share in formats)

    @property
    def total(self) -> int:
        others = self.other_bytes + self.layer_tables_bytes
        return self.projection_bytes + self.table_bytes + self.head_bytes + others


class LatentSpec(Spec):
    """Sizes of latent attention: keys and values of every head are linear functions of one latent per token.

    rank        r, elements of the latent
    nope_size   dn, of a head's query and key, not rotated
    rope_size   dr, rotated; all heads share the key's rotated elements, which are in the cache after the latent
    value_size  dv, of a head's value
    query_rank  of the low-rank step for queries; None: there is no such step
    """

    rank: int = Field(gt=0, le=MAX_SIZE)
    nope_size: int = Field(gt=0, le=MAX_SIZE)
    rope_size: int = Field(gt=0, le=MAX_SIZE)
    value_size: int = Field(gt=0, le=MAX_SIZE)
    query_rank: int | None = Field(default=None, gt=0, le=MAX_SIZE)


class ExpertsSpec(Spec):
    """Mixtures of experts: `layers` layers have `count` experts each. A token uses `chosen` of them, and all shared
    experts.

    size, shared_size  intermediate size of one expert, and of all shared experts together
    matrices           of one expert: 2 if it has no gate
    """

    later = ("matrices",)

    layers: int = Field(gt=0, le=MAX_LAYERS)
    count: int = Field(gt=0, le=MAX_SIZE)
    chosen: int = Field(gt=0, le=MAX_SIZE)
    size: int = Field(gt=0, le=MAX_SIZE)
    shared_size: int = Field(ge=0, le=MAX_SIZE)
    matrices: Literal[2, 3] = 3


class ModelSpec(Spec):
    """The model's shape, as the runtime needs it.

    kv_heads, head_size, scale  of the first layer: see `LayerSpec`
    latent                      sizes of latent attention, if the model has such layers
    layer_embedding             elements of a token in each layer's own embedding; 0: layers have none. The dense
                                graph after a layer looks it up, and also reads the first residual
    draft                       the layer that drafts the next tokens, beside the `layers`; None: there is none
    layer_specs                 of each layer; empty if all layers are alike and follow from the fields above
    mlp_weights                 see `each_mlp`; empty if they follow from the fields above
    rope_ends                   whether the model rotates texts beyond max_position_embeddings in another way
    """

    later = ("layer_embedding", "draft", "layer_specs", "mlp_weights", "rope_ends")

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
    draft: LayerSpec | None = None
    layer_specs: tuple[LayerSpec, ...] = ()
    mlp_weights: tuple[Annotated[int, Field(ge=0)], ...] = ()
    rope_ends: bool = False

    @model_validator(mode="after")
    def _one_spec_a_layer(self) -> ModelSpec:
        if self.layer_specs and len(self.layer_specs) != self.layers:
            raise ValueError(f"layer_specs has {len(self.layer_specs)} entries for {self.layers} layers")
        if self.mlp_weights and len(self.mlp_weights) != self.layers:
            raise ValueError(f"mlp_weights has {len(self.mlp_weights)} entries for {self.layers} layers")
        return self

    @model_validator(mode="after")
    def _sources_lend_their_rows(self) -> ModelSpec:
        for layer, spec in enumerate(self.layer_specs):
            if spec.source is None:
                continue
            source = self.layer_specs[spec.source] if spec.source < layer else spec
            if not (source.lends and source.has_rows and source.row == spec.row):
                raise ValueError(f"layer {layer} cannot read the rows of layer {spec.source}")
            if any(spec.state for spec in self.layer_specs):
                raise ValueError("layers without keys stand beside layers with a state")
        return self

    @property
    def drafted_tokens(self) -> int:
        """How many tokens of the vocabulary the draft layer chooses from: the first ones, of a large one a quarter.

        Its head would take longer than the layer. Tokenizers number tokens about as often as they come, so that the
        first ones are most of a text (Zhao et al., 2025, "FR-Spec").
        """
        part = self.vocab_size // DRAFTED_SHARE // 16 * 16  # whole panels of native products
        return max(part, min(self.vocab_size, LEAST_DRAFTED))

    def layer(self, index: int) -> LayerSpec:
        return self.layer_specs[index] if self.layer_specs else self._any_layer

    @property
    def each_layer(self) -> tuple[LayerSpec, ...]:
        """Of every layer, in order."""
        return self.layer_specs or (self._any_layer,) * self.layers

    @property
    def each_mlp(self) -> tuple[int, ...]:
        """For every layer, how many weights of its MLP a token is multiplied by, or of its router and the chosen
        experts. By default the last layers have experts.
        """
        if self.mlp_weights:
            return self.mlp_weights
        dense, experts = 3 * self.hidden_size * self.intermediate_size, self.experts
        if experts is None:
            return (dense,) * self.layers
        met = experts.count + experts.matrices * (experts.chosen * experts.size + experts.shared_size)
        return (dense,) * (self.layers - experts.layers) + (self.hidden_size * met,) * experts.layers

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
        """Bytes of a token that all layers read: rows of a source count once for each layer that reads them."""
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
        """A model of the layers that prefill and decode policies handle: those that attend to all earlier
        tokens."""
        return self._of(tuple(spec for spec in self.each_layer if spec.sees_all))

    @property
    def with_rows(self) -> ModelSpec:
        """A model of the layers whose rows a cache keeps: those without a state."""
        return self._of(tuple(spec for spec in self.each_layer if spec.state is None))

    def _of(self, specs: tuple[LayerSpec, ...]) -> ModelSpec:
        if len(specs) == self.layers:
            return self
        first = specs[0] if specs else self.layer(0)
        sizes = {name: getattr(first, name) for name in ("query_heads", "kv_heads", "head_size", "scale")}
        return self.model_copy(
            update={"layers": len(specs), "layer_specs": specs, "mlp_weights": (), **sizes}
        )

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
        """For each table of angles: the most rotated elements of a head in any layer."""
        sizes = [0] * (1 + max(spec.rotation for spec in self.each_layer))
        for spec in self.each_layer:
            sizes[spec.rotation] = max(sizes[spec.rotation], spec.rotary_size)
        return tuple(sizes)

    @property
    def head_counts(self) -> HeadCounts:
        """Of all layers."""
        return HeadCounts(
            query=frozenset(spec.query_heads for spec in self.each_layer) or frozenset({self.query_heads}),
            kv=frozenset(spec.kv_heads for spec in self.each_layer) or frozenset({self.kv_heads}),
        )
