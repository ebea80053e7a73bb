"""The work that every implementation of a model must do: its operations, and the bytes that it must read."""

from __future__ import annotations

from typing import Any

import numpy as np

from h2o_runtime.layer_spec import LayerSpec
from h2o_runtime.layers import LAYERS
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.policies.decode import DecodePolicy, FullDecode
from h2o_runtime.policies.prefill import Full, PrefillPolicy


def dense_flop(model: ModelSpec, tokens: int) -> int:
    """Every matrix for every token; the work after the last layer's attention, and the head, for the last
    token only.
    """
    hidden, specs = model.hidden_size, model.each_layer
    before = sum(LAYERS[spec.kind]().multiplications(model, spec) for spec in specs)
    after = [
        hidden * spec.out_size * spec.query_heads + mlp
        for spec, mlp in zip(specs, model.each_mlp, strict=True)
    ]
    rows = sum(after[:-1]) * tokens + after[-1]
    return 2 * (before * tokens + rows + hidden * model.vocab_size)


def attention_flop(model: ModelSpec, policy: PrefillPolicy[Any], tokens: int) -> int:
    """Two dot products per pair of query and visible key, in every query head of every layer that attends."""
    return sum(_each_attention_flop(model, policy, tokens))


def policy_share(model: ModelSpec, tokens: int) -> float:
    """Of all work on a prompt with full attention, the share of the layers that policies handle: what a sparse one
    can save at most.
    """
    attention = _each_attention_flop(model, Full(), tokens)
    handled = sum(flop for flop, spec in zip(attention, model.each_layer, strict=True) if spec.sees_all)
    return handled / (dense_flop(model, tokens) + sum(attention))


def _each_attention_flop(model: ModelSpec, policy: PrefillPolicy[Any], tokens: int) -> list[int]:
    """Of every layer, in order."""
    *others, last = model.each_layer
    found = [_pair_flop(spec) * _layer_pairs(spec, policy, tokens) for spec in others]
    # In the last layer, only the last row's keys.
    pairs = min(last.window, tokens) if last.window else policy.last_layer_pairs(tokens)
    return [*found, 0 if last.state else _pair_flop(last) * int(pairs)]


def layer_flop(model: ModelSpec, policy: PrefillPolicy[Any], tokens: int) -> int:
    """The same for the first layer, all of whose rows are needed."""
    return _pair_flop(model.layer(0)) * _layer_pairs(model.layer(0), policy, tokens)


def _pair_flop(spec: LayerSpec) -> int:
    """One dot product with a key and one added value, in every query head, at the sizes of the dense
    graphs.
    """
    return 2 * spec.query_heads * (spec.query_size + spec.out_size)


def _layer_pairs(spec: LayerSpec, policy: PrefillPolicy[Any], tokens: int) -> int:
    """The number of (query, key) pairs that a layer computes for a prompt: those of its window, or of the
    policy; a layer with a state has none.
    """
    if spec.state:
        return 0
    if not spec.window:
        return policy.visible_pairs(tokens)
    window = min(spec.window, tokens)
    return window * (window + 1) // 2 + (tokens - window) * window


def decode_bytes(model: ModelSpec, context: int, decoding: DecodePolicy[Any] | None = None) -> int:
    """Every weight once (of the embedding only what the head reads, of experts only the chosen ones), and the
    rows of the cache that the policy reads.
    """
    item = np.dtype(model.dtype).itemsize
    unread = 0 if model.tied else model.vocab_size * model.hidden_size * item
    if not model.tied and model.weights:
        unread = model.weights.table_bytes
    unread += _unchosen_bytes(model) + (model.weights.layer_tables_bytes if model.weights else 0)
    windows = sum(min(spec.window, context) * spec.row.elements * item for spec in model.each_layer)
    others = model.under_policies
    read = (decoding or FullDecode()).step_bytes(others, context) if others.layers else 0
    return model.weight_bytes - unread + windows + read


def _unchosen_bytes(model: ModelSpec) -> int:
    """Weights of the experts that one token does not use."""
    experts, weights = model.experts, model.weights
    if experts is None or weights is None:
        return 0
    unchosen = experts.layers * (experts.count - experts.chosen)
    left = unchosen * experts.matrices * experts.size * model.hidden_size
    return left * weights.projection_bytes // weights.projection_elements
