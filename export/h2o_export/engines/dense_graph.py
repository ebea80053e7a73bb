"""Rewrites dense graphs for TensorRT."""

from __future__ import annotations

from pathlib import Path

from onnx import inliner

from h2o_export.engines.joined import join_products
from h2o_export.engines.table import use_words
from h2o_runtime.bundles.onnx_model import read_model


def prepared(path: Path) -> bytes:
    """The graph at `path` in standard operators, rewritten for TensorRT.

    External data stay where they are, relative to the folder of `path`.
    """
    model = inliner.inline_local_functions(read_model(path))
    use_words(model)
    join_products(model, path.parent)
    serialized: bytes = model.SerializeToString()
    return serialized
