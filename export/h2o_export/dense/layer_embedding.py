"""A layer's own embedding of a token, which is added behind its MLP (Gemma 4, Google, 2026)."""

from __future__ import annotations

from torch import Tensor, nn

from h2o_export.architecture.config import ModelConfig
from h2o_export.layers.blocks import RMSNorm, embedding, geglu

ROWS = "embed_tokens_per_layer.weight"  # [V, P]: in a checkpoint, columns of one table of all layers
PROJECTION = "per_layer_model_projection.weight"  # [P, D]: rows of one matrix of all layers
NORM = "per_layer_projection_norm.weight"  # of all layers


class OwnEmbedding(nn.Module):
    """residual [n, D], tokens int64 [n], and embedded [n, D], which begins the residual stream → [n, D].

    The layer's embedding [n, P] is the mean of two parts, times √2: a row of its table, and a projection of
    `embedded`. A gate of the residual stream weighs it.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.layer_embedding is not None
        hidden, size, eps = config.hidden_size, config.layer_embedding.size, config.rms_norm_eps
        self.embed_tokens_per_layer = embedding(config.layer_embedding.vocabulary, size)
        self.per_layer_model_projection = nn.Linear(hidden, size, bias=False)
        self.per_layer_projection_norm = RMSNorm(size, eps)
        self.per_layer_input_gate = nn.Linear(hidden, size, bias=False)
        self.per_layer_projection = nn.Linear(size, hidden, bias=False)
        self.post_per_layer_input_norm = RMSNorm(hidden, eps)
        self.hidden, self.size = hidden, size

    def forward(self, residual: Tensor, tokens: Tensor, embedded: Tensor) -> Tensor:
        projected = self.per_layer_model_projection(embedded) * self.hidden**-0.5
        row = self.embed_tokens_per_layer(tokens) * self.size**0.5
        embedding = combined(self.per_layer_projection_norm(projected), row)
        added: Tensor = self.per_layer_projection(geglu(self.per_layer_input_gate(residual), embedding))
        normed: Tensor = self.post_per_layer_input_norm(added)
        return residual + normed


def combined(projected: Tensor, row: Tensor) -> Tensor:
    """Both parts of a layer's embedding, [n, P]."""
    return (projected + row) * 2**-0.5


def source(parameter: str, layer: int) -> str:
    """The name of a parameter of `OwnEmbedding` among a checkpoint's tensors."""
    return f"model.{parameter}" if parameter == NORM else f"model.layers.{layer}.{parameter}"
