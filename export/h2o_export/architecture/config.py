"""The exporter's model configuration, read from a checkpoint's `config.json`."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeVar

from torch import Tensor

from h2o_export.architecture.arrangement import AS_HERE, Arrangement
from h2o_export.architecture.draft import DraftLayer
from h2o_export.architecture.experts import ExpertsConfig
from h2o_export.architecture.families import Family, find_family
from h2o_export.architecture.families.family import (
    GROUPED_QUERY,
    LLAMA_NORMS,
    NO_MULTIPLIERS,
    WINDOW,
    Activation,
    Multipliers,
    Norms,
)
from h2o_export.architecture.kind_sizes import KindSizes
from h2o_export.architecture.layer_sizes import LayerEmbedding, LayerSizes
from h2o_export.architecture.rope import RopeConfig, longest
from h2o_export.architecture.values import integer, number
from h2o_runtime.errors import CheckpointError, ConfigError, UnsupportedModelError
from h2o_runtime.limits import MAX_LAYERS

__all__ = ["ExpertsConfig", "ModelConfig", "RopeConfig"]

Sizes = TypeVar("Sizes", bound=KindSizes)

HEAD_SIZES = range(16, 257, 2)  # RoPE turns pairs
LARGEST_HEAD = 512


@dataclass(frozen=True)
class ModelConfig:
    """A decoder that this exporter can build. Sizes are numbers of elements."""

    family: str
    hidden_size: int
    layers: int
    query_heads: int
    kv_heads: int
    head_size: int
    rotated_size: int  # elements of a head that RoPE rotates, the first ones
    intermediate_size: int
    vocab_size: int
    rms_norm_eps: float
    max_position_embeddings: int
    ropes: tuple[RopeConfig, ...]  # of every layer
    tied: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: Literal["head", "projection"] | None  # RMSNorm of q and k: per head, or of all heads together
    kinds: tuple[str, ...]  # of every layer: a key of h2o_export.layers.LAYERS
    window: int = 0  # keys that a token sees at most in layers with a window
    activation: Activation = "silu"  # of the gate of an MLP
    arrangement: Arrangement = AS_HERE
    norms: Norms = LLAMA_NORMS
    multipliers: Multipliers = NO_MULTIPLIERS
    logits_cap: float | None = None  # a tanh keeps logits below this
    scores_cap: float | None = None  # and scores of attention, before softmax
    sinks: bool = False  # whether softmaxes of attention have a learned score without a key
    kind_sizes: tuple[KindSizes, ...] = ()  # of the layers' kinds that have sizes of their own
    experts: ExpertsConfig | None = None
    value_norm: bool = False  # whether each head's value is divided by its root mean square
    keys_as_values: bool = False  # whether values are what gives keys, before norm and rotation
    source: int | None = (
        None  # the layer whose keys and values it reads, having none; of single layers: see `at`
    )
    lends: bool = False  # whether later layers read its keys and values
    layer_scalar: bool = False  # whether a learned number multiplies what leaves a layer
    layer_embedding: LayerEmbedding | None = None
    layer_sizes: tuple[LayerSizes, ...] = ()  # of every layer, where they differ: see `at`
    # Numbers in the files of every layer's mixer and of its MLP, if it has one; empty: one number is both.
    blocks: tuple[tuple[int, ...], ...] = ()
    draft: DraftLayer | None = None  # the layer beside the model's own that drafts its next tokens
    draft_layers: int = 0  # layers after the model's own in its files that predict further tokens

    @classmethod
    def from_huggingface(cls, raw: dict[str, Any]) -> ModelConfig:
        """Read a parsed `config.json`.

        Raises UnsupportedModelError for a feature the exporter lacks, CheckpointError for a broken config.
        """
        family = find_family(raw)
        raw = family.completed(raw)
        family.check(raw)
        kind_sizes = family.kind_sizes(raw)
        layers = integer(raw, "num_hidden_layers", limit=MAX_LAYERS)
        own_heads = (heads for sizes in kind_sizes if (heads := sizes.heads(raw)))
        query_heads, kv_heads, head_size = next(own_heads, None) or _heads(raw, family, layers)
        biases = family.biases(raw)
        own_sizes = (sizes.rotated_size for sizes in kind_sizes if sizes.rotated_size is not None)
        rotated = next(own_sizes, None) or family.rotated_size(raw, head_size)
        return cls(
            family=family.model_type,
            hidden_size=integer(raw, "hidden_size"),
            layers=layers,
            query_heads=query_heads,
            kv_heads=kv_heads,
            head_size=head_size,
            rotated_size=rotated,
            intermediate_size=family.mlp_size(raw),
            vocab_size=integer(raw, "vocab_size"),
            rms_norm_eps=number(raw, "rms_norm_eps"),
            max_position_embeddings=longest(raw),
            ropes=family.ropes(raw, rotated, layers),
            tied=bool(raw["tie_word_embeddings"]),
            qkv_bias=biases.qkv,
            o_bias=biases.output,
            mlp_bias=biases.mlp,
            qk_norm=family.qk_norm,
            kinds=_kinds(raw, family, layers),
            window=family.window(raw),
            activation=family.activation,
            arrangement=family.arranged(raw),
            norms=family.norms,
            multipliers=family.multipliers(raw),
            logits_cap=family.logits_cap(raw),
            scores_cap=family.scores_cap(raw),
            sinks=family.sinks,
            value_norm=family.value_norm,
            layer_scalar=family.layer_scalar,
            layer_embedding=family.layer_embedding(raw),
            layer_sizes=family.layer_sizes(raw, layers),
            kind_sizes=kind_sizes,
            blocks=family.blocks(raw),
            draft=family.draft(raw),
            draft_layers=integer(raw, "num_nextn_predict_layers", 0, least=0),
            experts=family.experts(raw, layers),
        )

    def limited(self, context: int | None) -> ModelConfig:
        """The same model for texts of at most `context` tokens; None: the model's maximum.

        Raises ConfigError for more than that.
        """
        if context is None or context == self.max_position_embeddings:
            return self
        if context > self.max_position_embeddings:
            dynamic = any(rope.kind == "dynamic" for rope in self.ropes)
            scaled = (
                "; beyond it RoPE scaling 'dynamic' would begin, which is not supported" if dynamic else ""
            )
            raise ConfigError(
                f"context must be at most {self.max_position_embeddings:,} tokens, the model's limit, but is "
                f"{context:,}{scaled}",
                field="context",
            )
        ropes = tuple(rope.limited(context) for rope in self.ropes)
        return replace(self, max_position_embeddings=context, ropes=ropes)

    def at(self, layer: int) -> ModelConfig:
        """The configuration with one layer's own sizes."""
        if not self.layer_sizes:
            return self
        sizes = self.layer_sizes[layer]
        return replace(
            self, layer_sizes=(), **{field.name: getattr(sizes, field.name) for field in fields(sizes)}
        )

    def sizes(self, kind: type[Sizes]) -> Sizes | None:
        """Of one kind of layer; None: the model has no such layers."""
        return next((sizes for sizes in self.kind_sizes if isinstance(sizes, kind)), None)

    def own_sizes(self, kind: type[Sizes]) -> Sizes:
        """Of one kind of layer that the model has: its family gives them."""
        sizes = self.sizes(kind)
        assert sizes is not None
        return sizes

    @property
    def rope(self) -> RopeConfig:
        """The first layer's, which is every layer's if there is one table of angles."""
        return self.ropes[0]

    @property
    def rotations(self) -> tuple[RopeConfig, ...]:
        """The graphs' tables of angles: each rotation of a layer once."""
        return tuple(dict.fromkeys(self.ropes))

    def rotation(self, layer: int) -> int:
        """Which of `rotations` a layer uses."""
        return self.rotations.index(self.ropes[layer])

    def projection_rows(self, module: str) -> int:
        """Output size of a projection of grouped queries, another kind or a dense MLP, by its name in a layer."""
        for sizes in self.kind_sizes:
            if (own := sizes.module_rows(module)) is not None:
                return own
        rows = {"q_proj": self.query_heads * self.head_size}
        rows |= dict.fromkeys(("k_proj", "v_proj"), self.kv_heads * self.head_size)
        rows |= dict.fromkeys(("gate_proj", "up_proj"), self.intermediate_size)
        return rows[module.rpartition(".")[2]]

    def file_order(self, module: str) -> Tensor | None:
        """Where a fused module of the files has each row, int64 [rows]; None: in the order of its modules here."""
        if not self.arrangement.by_key_head:
            return None
        orders = (sizes.file_order(module) for sizes in self.kind_sizes)
        return next((order for order in orders if order is not None), None)

    def has_mlp(self, layer: int) -> bool:
        """Whether a layer has an MLP or a mixture of experts."""
        return not self.blocks or len(self.blocks[layer]) > 1

    def routed(self, layer: int) -> bool:
        """Whether a layer's MLP is a mixture of experts."""
        return self.experts is not None and layer in self.experts.layers


def _heads(raw: dict[str, Any], family: Family, layers: int) -> tuple[int, int, int]:
    """Query heads, key/value heads and head size of grouped queries."""
    query_heads = integer(raw, "num_attention_heads")
    kv_heads = integer(raw, "num_key_value_heads", query_heads)
    head_size = integer(raw, "head_dim", integer(raw, "hidden_size") // query_heads)
    if query_heads % kv_heads:
        raise CheckpointError(
            f"config.json: num_attention_heads ({query_heads}) is no multiple of num_key_value_heads "
            f"({kv_heads}); the file is damaged or not of a decoder with grouped queries"
        )
    for size in (head_size, *(sizes.head_size for sizes in family.layer_sizes(raw, layers))):
        if size not in HEAD_SIZES and size != LARGEST_HEAD:
            raise UnsupportedModelError(
                f"head size {size} is not supported; supported are even sizes from {HEAD_SIZES[0]} to "
                f"{HEAD_SIZES[-1]}, and {LARGEST_HEAD}"
            )
    return query_heads, kv_heads, head_size


def _kinds(raw: dict[str, Any], family: Family, layers: int) -> tuple[str, ...]:
    """The kind of every layer, including those with a window."""
    kinds = family.layer_kinds(raw, layers)
    if not family.window(raw):
        return kinds
    windowed = family.windowed(raw, layers)
    others = {kind for kind, window in zip(kinds, windowed, strict=True) if window} - {GROUPED_QUERY, WINDOW}
    if others:
        raise UnsupportedModelError(f"a sliding window in layers of the kind {others.pop()} is not supported")
    return tuple(WINDOW if window else kind for kind, window in zip(kinds, windowed, strict=True))
