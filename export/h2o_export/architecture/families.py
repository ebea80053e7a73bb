"""The checkpoints that can be exported: families share a kind of decoder layer and differ in the columns below."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from h2o_runtime.errors import CheckpointError, UnsupportedModelError

HEAD_SIZES = (32, 64, 80, 96, 128)
ROPE_TYPES = ("default", "linear", "llama3", "yarn")
Router = Literal["softmax", "sigmoid"]


@dataclass(frozen=True)
class Family:
    """What sets one `model_type` apart from plain Llama."""

    model_type: str
    architecture: str
    layers: tuple[str, ...] = ("grouped-query",)  # keys of LAYERS, of the layers in turn and then again
    qkv_bias: bool = False  # biases on q, k and v always
    bias_flags: bool = False  # biases where config.json says attention_bias, mlp_bias
    attention_bias_flag: bool = False  # biases where config.json says attention_bias alone
    qk_norm: bool = False  # RMSNorm over each head of q and k
    default_head_size: int | None = None  # where config.json may omit head_dim; None: hidden_size / heads
    default_window: int | None = None  # sliding window where config.json has no such key
    pairs_stay: bool = False  # RoPE turns neighbours and leaves them neighbours, whatever config.json says
    router: Router | None = None  # of its mixtures of experts; None: it has none
    first_dense: int = 0  # layers without a mixture, where config.json does not say
    built_as: str | None = None  # the model type under which transformers knows it; None: its own


FAMILIES = {
    family.model_type: family
    for family in (
        Family("llama", "LlamaForCausalLM", bias_flags=True),  # also SmolLM, SmolLM2, TinyLlama
        Family("mistral", "MistralForCausalLM", default_window=4096),
        Family("qwen2", "Qwen2ForCausalLM", qkv_bias=True),
        Family("qwen3", "Qwen3ForCausalLM", bias_flags=True, qk_norm=True, default_head_size=128),
        Family(
            "deepseek_v2",
            "DeepseekV2ForCausalLM",
            layers=("latent",),
            bias_flags=True,
            pairs_stay=True,
            router="softmax",
        ),
        Family(  # also Moonlight
            "deepseek_v3",
            "DeepseekV3ForCausalLM",
            layers=("latent",),
            attention_bias_flag=True,
            router="sigmoid",
            first_dense=3,
        ),
        Family(
            "kimi_k2",
            "DeepseekV3ForCausalLM",
            layers=("latent",),
            attention_bias_flag=True,
            router="sigmoid",
            first_dense=3,
            built_as="deepseek_v3",
        ),
        Family("youtu", "YoutuForCausalLM", layers=("latent",), attention_bias_flag=True),
    )
}

# Settings that change the arithmetic of a layer: (key of config.json, harmless values, what it is).
_REFUSED: tuple[tuple[str, tuple[Any, ...], str], ...] = (
    ("hidden_act", (None, "silu", "swish"), "the activation"),
    ("partial_rotary_factor", (None, 1, 1.0), "partial rotary embedding"),
    ("pretraining_tp", (None, 0, 1), "tensor-parallel slicing"),
    ("quantization_config", (None,), "a quantized checkpoint"),
    ("num_local_experts", (None, 0), "mixture of experts"),
)


def check_supported(raw: dict[str, Any]) -> Family:
    """Find the family of a parsed `config.json`, or say in one sentence which feature is missing."""
    model_type = raw.get("model_type")
    if not isinstance(model_type, str):
        raise CheckpointError("config.json has no model_type: this is not a Hugging Face model folder")
    family = FAMILIES.get(model_type)
    if family is None:
        known = ", ".join(FAMILIES)
        raise UnsupportedModelError(
            f"model type '{model_type}' is not supported: its decoder layer is another; supported are {known}"
        )
    architectures = raw.get("architectures") or [family.architecture]
    if not isinstance(architectures, list):
        raise CheckpointError(f"config.json: architectures must be a list, but is {architectures!r}")
    if family.architecture not in architectures:
        raise UnsupportedModelError(
            f"architecture {architectures[0]} has no language-model head of the kind exported here; "
            f"expected {family.architecture}"
        )
    for key, harmless, what in _REFUSED:
        if raw.get(key) not in harmless:
            raise UnsupportedModelError(f"{what} ({key} = {raw[key]!r}) is not supported")
    _refuse_sliding_window(raw, family)
    return family


def _refuse_sliding_window(raw: dict[str, Any], family: Family) -> None:
    """A window no shorter than the context changes nothing, and any other is refused.

    Qwen's configs carry a window that `use_sliding_window` switches off; Llama has none and ignores the key.
    """
    window = raw.get("sliding_window", family.default_window)
    if family.model_type == "llama" or not raw.get("use_sliding_window", True):
        window = None
    context = raw.get("max_position_embeddings", 2048)
    if isinstance(window, int) and isinstance(context, int) and window >= context:
        return
    if window or "sliding_attention" in (raw.get("layer_types") or []):
        raise UnsupportedModelError(
            f"sliding-window attention (sliding_window = {window!r}, of a context of {context!r}) is not "
            "supported; checkpoints with full attention in every layer are, or a window no shorter than the context"
        )
