"""Where a checkpoint has the layer that drafts a model's next tokens (multi-token prediction)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class DraftLayer:
    """Names of its modules in the checkpoint: one decoder layer, and what lies around it.

    kind         of its attention: a key of h2o_export.layers.LAYERS
    layer        what the names of the decoder layer's tensors begin with
    token_norm   the norm of a token's embedding
    hidden_norm  the norm of what the model's head read of the token before
    merging      the projection of both together, the embedding first
    norm         the norm before the head
    copies       tensors that repeat the model's embedding and head, by the names of those
    """

    kind: str
    layer: str
    token_norm: str
    hidden_norm: str
    merging: str
    norm: str
    copies: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def around(self) -> dict[str, str]:
        """The checkpoint's names of the modules around the decoder layer, by those here."""
        return {name: getattr(self, name) for name in ("token_norm", "hidden_norm", "merging", "norm")}


def as_in_qwen(kind: str) -> DraftLayer:
    """As Qwen3.5 has it, beside the model."""
    return DraftLayer(
        kind,
        layer="mtp.layers.0.",
        token_norm="mtp.pre_fc_norm_embedding",
        hidden_norm="mtp.pre_fc_norm_hidden",
        merging="mtp.fc",
        norm="mtp.norm",
    )


def as_in_deepseek(kind: str, layers: int) -> DraftLayer:
    """As DeepSeek-V3 has it: a layer after the model's `layers`, with copies of embedding and head."""
    layer = f"model.layers.{layers}."
    return DraftLayer(
        kind,
        layer=layer,
        token_norm=f"{layer}enorm",
        hidden_norm=f"{layer}hnorm",
        merging=f"{layer}eh_proj",
        norm=f"{layer}shared_head.norm",
        copies={
            "model.embed_tokens.weight": f"{layer}embed_tokens.weight",
            "lm_head.weight": f"{layer}shared_head.head.weight",
        },
    )
