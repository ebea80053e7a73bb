"""A family of checkpoints: a `model_type`, and the differences of its decoder layer from Llama's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from h2o_export.architecture.arrangement import AS_HERE, Arrangement
from h2o_export.architecture.draft import DraftLayer
from h2o_export.architecture.experts import ExpertsConfig
from h2o_export.architecture.kind_sizes import KindSizes
from h2o_export.architecture.layer_sizes import LayerEmbedding, LayerSizes
from h2o_export.architecture.rope import SHARE, RopeConfig, longest, read_rope, read_ropes, rotation
from h2o_export.architecture.values import integer, number, refuse
from h2o_runtime.errors import CheckpointError, UnsupportedModelError

GROUPED_QUERY = "grouped-query"  # keys of h2o_export.layers.LAYERS
WITHOUT_ROTATION = "grouped-query-without-rotation"
ROTATED_FIRST = "grouped-query-rotated-first"
WINDOW = "window"
LATENT = "latent"
GATED_QUERY, GATED_DELTA = "gated-query", "gated-delta"
MAMBA2 = "mamba2"
SHORT_CONVOLUTION = "short-convolution"
SLIDING, FULL = "sliding_attention", "full_attention"  # as layer_types has them
Activation = Literal["silu", "gelu", "relu2"]  # gelu in its tanh approximation; relu² without a gate


@dataclass(frozen=True)
class Norms:
    """Names of the RMS norms in a checkpoint's layer, by place; None: the place has no norm."""

    before_attention: str | None = "input_layernorm"
    after_attention: str | None = None
    before_mlp: str | None = "post_attention_layernorm"
    after_mlp: str | None = None


@dataclass(frozen=True)
class Multipliers:
    """Constant factors of a model that are 1 in Llama.

    embedding  the rows of the embedding
    residual   what attention and MLP add to the residual stream
    logits     the logits
    attention  the scores, before softmax; None: 1 / √(head size)
    """

    embedding: float = 1.0
    residual: float = 1.0
    logits: float = 1.0
    attention: float | None = None


@dataclass(frozen=True)
class Biases:
    """Which projections of a layer have one: q, k and v; attention's output; those of the MLP."""

    qkv: bool = False
    output: bool = False
    mlp: bool = False


LLAMA_NORMS, NO_MULTIPLIERS = Norms(), Multipliers()

# What transformers takes for a key that config.json omits, in Llama and wherever a family says nothing else.
_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e4,
    "rope_parameters": None,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
}
# Keys of which null is a value; for all others it is as if they were absent.
_NULLABLE = frozenset(
    (
        "head_dim",
        "num_key_value_heads",
        "sliding_window",
        "q_lora_rank",
        "rope_interleave",
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "attention_multiplier",
    )
)


@dataclass(frozen=True)
class Family:
    """One `model_type`. A family overrides the methods whose answers its `config.json` decides."""

    model_type: str
    architecture: str
    layers: tuple[str, ...] = (GROUPED_QUERY,)  # kinds of the layers, repeated from the first
    norms: Norms = LLAMA_NORMS
    qkv_bias: bool = False  # biases on q, k and v always
    bias_flags: bool = False  # biases if config.json says attention_bias, mlp_bias
    attention_bias_flag: bool = False  # biases only if config.json says attention_bias
    qk_norm: Literal["head", "projection"] | None = None  # RMSNorm of q and k: per head, or of all together
    activation: Activation = "silu"
    sinks: bool = False  # whether softmaxes of attention have a learned score without a key
    value_norm: bool = False  # whether each head's value is divided by its root mean square
    layer_scalar: bool = False  # whether a learned number multiplies what leaves a layer
    arrangement: Arrangement = AS_HERE
    named_windows: bool = False  # whether layer_types says which layers have the window; else all have
    named_rotations: bool = False  # whether rope_parameters has a rotation for each kind in layer_types
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of keys of config.json, other than Llama's
    aliases: Mapping[str, str] = field(default_factory=dict)  # other names of keys
    built_as: str | None = None  # transformers' model type; None: the same

    def completed(self, raw: dict[str, Any]) -> dict[str, Any]:
        """`raw` with defaults for all keys that it omits, as transformers has them."""
        given = {key: value for key, value in raw.items() if value is not None or key in _NULLABLE}
        named = {self.aliases.get(key, key): value for key, value in given.items()}
        return {**_DEFAULTS, **self.defaults, **named}

    def arranged(self, raw: dict[str, Any]) -> Arrangement:
        """How the files arrange matrices."""
        return self.arrangement

    def mlp_size(self, raw: dict[str, Any]) -> int:
        """Rows inside a plain MLP."""
        return integer(raw, "intermediate_size")

    @property
    def partly_rotated(self) -> bool:
        """Whether config.json says which share of a head RoPE rotates; in other families it rotates all of it."""
        return SHARE in self.defaults

    def layer_kinds(self, raw: dict[str, Any], layers: int) -> tuple[str, ...]:
        """The kind of every layer, apart from windows. Raises as ModelConfig.from_huggingface, like all
        methods here.
        """
        return tuple(self.layers[layer % len(self.layers)] for layer in range(layers))

    def window(self, raw: dict[str, Any]) -> int:
        """Keys that a token sees at most in layers with a window, including its own; 0: no layer has one.

        A window that is at least as long as the context has no effect.
        """
        if not self.said_window(raw):
            return 0
        window = integer(raw, "sliding_window")
        return window if window < longest(raw) else 0

    def said_window(self, raw: dict[str, Any]) -> bool:
        """Whether config.json sets a window of any length. Some models have one that a flag switches off;
        Llama ignores the key.
        """
        used = "use_sliding_window" not in self.defaults or raw["use_sliding_window"]
        return bool("sliding_window" in self.defaults and used and raw["sliding_window"])

    def windowed(self, raw: dict[str, Any], layers: int) -> tuple[bool, ...]:
        """Which layers have the window."""
        if not self.named_windows:
            return (True,) * layers
        types = raw.get("layer_types")
        if types is None:
            return self.unnamed_windows(raw, layers)
        return tuple(kind == SLIDING for kind in layer_names(types, layers, SLIDING, FULL))

    def unnamed_windows(self, raw: dict[str, Any], layers: int) -> tuple[bool, ...]:
        """As `windowed`, if config.json has no layer_types."""
        return (True,) * layers

    def ropes(self, raw: dict[str, Any], rotated: int, layers: int) -> tuple[RopeConfig, ...]:
        """How every layer rotates queries and keys."""
        if not self.named_rotations:
            return (read_rope(raw, rotated),) * layers
        kinds = [SLIDING if window else FULL for window in self.windowed(raw, layers)]
        return read_ropes(raw, rotated, kinds, self.bases(raw), scaled=FULL)

    def bases(self, raw: dict[str, Any]) -> Mapping[str, Any]:
        """With `named_rotations`: the base of each kind's rotation, if rope_parameters has none."""
        return dict.fromkeys((FULL, SLIDING), raw["rope_theta"])

    def biases(self, raw: dict[str, Any]) -> Biases:
        flag = bool(raw["attention_bias"]) and (self.bias_flags or self.attention_bias_flag)
        return Biases(self.qkv_bias or flag, flag, self.bias_flags and bool(raw["mlp_bias"]))

    def rotated_size(self, raw: dict[str, Any], head_size: int) -> int:
        """Elements of a head that RoPE rotates, the first ones."""
        if not self.partly_rotated:
            return head_size
        share = number({SHARE: rotation(raw).get(SHARE, raw[SHARE])}, SHARE)
        size = int(head_size * share)
        if not 0 < size <= head_size or size % 2:
            raise CheckpointError(
                f"config.json: {SHARE} is {share:g}, and {size} of {head_size} elements of a head cannot be "
                "rotated; the file is damaged"
            )
        return size

    def layer_sizes(self, raw: dict[str, Any], layers: int) -> tuple[LayerSizes, ...]:
        """What every layer has of its own; empty where all are alike."""
        return ()

    def layer_embedding(self, raw: dict[str, Any]) -> LayerEmbedding | None:
        """The embedding of a token that each layer has of its own, if any."""
        return None

    def blocks(self, raw: dict[str, Any]) -> tuple[tuple[int, ...], ...]:
        """The numbers of every layer's mixer and MLP in the files, if each has its own."""
        return ()

    def multipliers(self, raw: dict[str, Any]) -> Multipliers:
        return NO_MULTIPLIERS

    def logits_cap(self, raw: dict[str, Any]) -> float | None:
        """The limit of logits by a tanh; None: no limit."""
        return None

    def scores_cap(self, raw: dict[str, Any]) -> float | None:
        """What a tanh keeps scores of attention below; None: nothing does."""
        return None

    def kind_sizes(self, raw: dict[str, Any]) -> tuple[KindSizes, ...]:
        """Of its layers' kinds, those that have sizes of their own."""
        return ()

    def experts(self, raw: dict[str, Any], layers: int) -> ExpertsConfig | None:
        """The mixtures of experts; None if every layer is dense."""
        return None

    def draft(self, raw: dict[str, Any]) -> DraftLayer | None:
        """The layer that drafts the model's next tokens, which its files need not have."""
        return None

    def check(self, raw: dict[str, Any]) -> None:
        """Raises UnsupportedModelError for a setting that changes the arithmetic of a layer."""
        architectures = raw.get("architectures") or [self.architecture]
        if not isinstance(architectures, list):
            raise CheckpointError(f"config.json: architectures must be a list, but is {architectures!r}")
        stem = self.architecture.removesuffix("ForCausalLM")
        known = (
            self.architecture,
            f"{stem}Model",
            f"{stem}TextModel",
        )  # the last two are the same without a head
        plain = {str(one).replace("_", "") for one in architectures}  # some files have Ernie4_5_ForCausalLM
        if not {name.replace("_", "") for name in known} & plain:
            raise UnsupportedModelError(
                f"architecture {architectures[0]} is not supported for this model type, because its head is not a "
                f"language model's; expected {self.architecture}"
            )
        refuse(raw, (row for row in _REFUSED if row[0] not in self.defaults))
        if not self.said_window(raw) and SLIDING in (raw.get("layer_types") or []):
            window = raw.get("sliding_window")
            raise UnsupportedModelError(
                f"layer_types names layers with a sliding window, but sliding_window = {window!r} gives no window"
            )


def layer_names(types: Any, layers: int, one: str, other: str) -> list[str]:
    """`layer_types` of a `config.json` that has layers of two kinds. Raises CheckpointError."""
    if not isinstance(types, list) or len(types) != layers or not {*map(str, types)} <= {one, other}:
        raise CheckpointError(
            f"config.json: layer_types must name the kind of each of {layers} layers, {one} or {other}, but is "
            f"{types!r}"
        )
    return types


# Settings that change a layer's arithmetic: (key of config.json, harmless values, description).
_REFUSED: tuple[tuple[str, tuple[Any, ...], str], ...] = (
    ("hidden_act", (None, "silu", "swish"), "the activation"),
    (SHARE, (None, 1, 1.0), "partial rotary embedding"),
    ("quantization_config", (None,), "a quantized checkpoint"),
    ("num_local_experts", (None, 0), "mixture of experts"),
)
