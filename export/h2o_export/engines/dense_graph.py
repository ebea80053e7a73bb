"""Rewrites dense graphs for TensorRT."""

from __future__ import annotations

from pathlib import Path

from onnx import inliner

from h2o_export.engines.block_product import use_block_products
from h2o_export.engines.joined import join_products
from h2o_export.engines.table import use_words
from h2o_runtime.bundles.onnx_model import read_model


def prepared(path: Path, block_products: bool) -> bytes:
    """The graph at `path` in standard operators, rewritten for TensorRT.

    block_products: plugins multiply with 4-bit weights. External data stay where they are, relative to the
    folder of `path`.
    """
    model = inliner.inline_local_functions(read_model(path))
    use_words(model)
    join_products(model, path.parent)
    if block_products:
        use_block_products(model, path.parent)
    serialized: bytes = model.SerializeToString()
    return serialized
