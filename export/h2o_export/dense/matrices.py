"""Which tensors of a checkpoint are matrices with a weight format, and which one."""

from __future__ import annotations

from h2o_export.dense import layer_embedding
from h2o_export.formats import MatrixFormats, WeightFormat
from h2o_export.layers import LAYERS

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
FREQUENCIES = "inv_freq"  # the parameters that no checkpoint has
FLOAT32 = (
    FREQUENCIES,
    "e_score_correction_bias",
    ".A_log",
    ".dt_bias",
    "mamba.D",
)  # whatever the model's dtype: float16 would decide otherwise
ROUTERS = (".mlp.gate.weight", ".mlp.shared_expert_gate.weight", ".router.proj.weight")
FLOAT_MATRICES = tuple(name for kind in LAYERS.values() for name in kind.float_matrices)


def tensor_format(source: str, shape: tuple[int, ...], formats: MatrixFormats) -> WeightFormat | None:
    """The format of a checkpoint's tensor; None for what is no matrix and has the model's dtype.

    A router's few numbers decide, and some matrices of layer kinds stand in several graphs: they stay floats too.
    """
    if len(shape) != 2 or source.endswith((*ROUTERS, *FLOAT32, *FLOAT_MATRICES)):
        return None
    if source.endswith(layer_embedding.ROWS):
        return formats.table
    return {EMBEDDING: formats.table, HEAD: formats.head}.get(source) or formats.of_layers(source)
