"""Descriptions of models that have no bundle."""

from __future__ import annotations

from h2o_runtime.layer_spec import LayerSpec
from h2o_runtime.model_spec import ModelSpec


def grouped(query_heads: int, *kv_heads: int) -> ModelSpec:
    """A layer for each number of key/value heads, with heads of 8."""
    row = {"head_size": 8, "value_size": 8, "rotary_size": 8, "scale": 0.25}
    sizes = {"query_heads": query_heads, "query_size": query_heads * 8, "out_size": query_heads * 8}
    layers = [LayerSpec(kind="grouped-query", kv_heads=heads, **sizes, **row) for heads in kv_heads]
    return ModelSpec(
        family="llama",
        hidden_size=64,
        layers=len(layers),
        query_heads=query_heads,
        kv_heads=kv_heads[0],
        head_size=8,
        intermediate_size=160,
        vocab_size=512,
        max_position_embeddings=1024,
        parameters=1,
        tied=True,
        scale=0.25,
        dtype="float32",
        layer_specs=tuple(layers),
    )
