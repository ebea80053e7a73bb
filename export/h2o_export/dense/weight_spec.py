"""What the weights of a model take, and in which formats they are."""

from __future__ import annotations

import math

from h2o_export.checkpoints import Checkpoint
from h2o_export.dense import layer_embedding
from h2o_export.dense.graphs import checkpoint_tensors
from h2o_export.dense.matrices import EMBEDDING, FLOAT32, HEAD, tensor_format
from h2o_export.formats import FLOATS, MatrixFormats
from h2o_export.plan import Plan
from h2o_runtime.model_spec import FormatShare, WeightSpec


def parameter_count(plan: Plan) -> int:
    """Number of weights, a tied embedding counted once."""
    return sum(math.prod(shape) for shape in checkpoint_tensors(plan).values())


def matrices_of_layers(plan: Plan) -> dict[str, tuple[int, ...]]:
    """Shapes of the matrices whose formats may differ, by name."""
    any_format = MatrixFormats(FLOATS["float32"], FLOATS["float16"], FLOATS["float16"])
    return {
        name: shape
        for name, shape in checkpoint_tensors(plan).items()
        if tensor_format(name, shape, any_format) is any_format.projections
    }


def weight_spec(checkpoint: Checkpoint, dtype: str, formats: MatrixFormats) -> WeightSpec:
    """What weights take on disk, by what they are for."""
    plan = checkpoint.plan
    sizes = dict.fromkeys(("projections", "table", "head", "layer tables", "rest"), 0)
    elements = 0
    for name, shape in checkpoint_tensors(plan).items():
        matrix = tensor_format(name, shape, formats)
        kind = {EMBEDDING: "table", HEAD: "head"}.get(name, "projections" if matrix else "rest")
        kind = "layer tables" if name.endswith(layer_embedding.ROWS) else kind
        floats = FLOATS["float32" if name.endswith(FLOAT32) else dtype]
        sizes[kind] += (matrix or floats).nbytes(shape)
        elements += math.prod(shape) if kind == "projections" else 0
    return WeightSpec(
        projections=formats.projections.name,
        head=(formats.table if plan.config.tied else formats.head).name,
        block_size=formats.block_size,
        named={name: format.name for name, format in formats.named.items()},
        formats=_shares(checkpoint, formats),
        projection_elements=elements,
        projection_bytes=sizes["projections"],
        table_bytes=sizes["table"],
        head_bytes=sizes["head"],
        other_bytes=sizes["rest"],
        layer_tables_bytes=sizes["layer tables"],
    )


def _shares(checkpoint: Checkpoint, formats: MatrixFormats) -> dict[str, FormatShare]:
    found: dict[str, FormatShare] = {}
    for name, shape in matrices_of_layers(checkpoint.plan).items():
        form = formats.of_layers(name)
        before = found.get(form.name, FormatShare(matrices=0, kept=0, elements=0))
        found[form.name] = FormatShare(
            matrices=before.matrices + 1,
            kept=before.kept + form.keeps(checkpoint.integers(name)),
            elements=before.elements + math.prod(shape),
        )
    return found
