"""Llama-family forward in float64 NumPy: full attention, and the sparse prefill chunk by chunk.

Reads a Hugging Face folder directly. `h2o_run` takes another route than the runtime on purpose: chunk c
passes through all layers before chunk c + 1 starts, and every query's output is one softmax over its own
key set, with no partial states and no fusion. Sizes:

    N prompt tokens, n rows of one call, Hq query heads, Hkv key/value heads, d head size, S chunk size,
    Hs score heads (Hkv or Hq), M memory slots.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from .operators import memory_select, selection_margin

Float64 = NDArray[np.float64]
Int32 = NDArray[np.int32]
Ids = Sequence[int] | NDArray[np.integer[Any]]
Attend = Callable[[Float64, Float64, Float64], Float64]  # q [N, Hq, d]; k, v [N, Hkv, d] → [N, Hq, d]

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
ROWS = 1024  # rows of a block, bounding temporaries to ROWS x N


@dataclass(frozen=True)
class Model:
    """A checkpoint in float64. To compare with a model whose RoPE table is rounded, replace `inv_freq`."""

    weights: dict[str, Float64]
    layers: int
    query_heads: int
    kv_heads: int
    head_size: int
    eps: float
    inv_freq: Float64  # [d/2], radians a position

    @property
    def scale(self) -> float:
        return 1 / math.sqrt(self.head_size)


def load_model(folder: str | Path) -> Model:
    folder = Path(folder)
    config = json.loads((folder / "config.json").read_text())
    if config["model_type"] not in FAMILIES:
        raise ValueError(f"model_type {config['model_type']} is none of {', '.join(FAMILIES)}")
    # Qwen2 and Qwen3 name a window and switch it off with a second key.
    if config.get("sliding_window") is not None and config.get("use_sliding_window", True):
        raise ValueError("sliding-window attention is not modelled here")
    weights = load_weights(folder)
    if "lm_head.weight" not in weights or config.get("tie_word_embeddings", False):
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    query_heads = config["num_attention_heads"]
    return Model(
        weights=weights,
        layers=config["num_hidden_layers"],
        query_heads=query_heads,
        kv_heads=config.get("num_key_value_heads") or query_heads,
        head_size=config.get("head_dim") or config["hidden_size"] // query_heads,
        eps=config.get("rms_norm_eps", 1e-6),
        inv_freq=inverse_frequencies(config),
    )


def load_weights(folder: Path) -> dict[str, Float64]:
    """All tensors of one file, or of the shards that model.safetensors.index.json names."""
    index = folder / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.exists():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    weights: dict[str, Float64] = {}
    for name in names:
        # Through torch, because NumPy has no bfloat16.
        with safe_open(folder / name, framework="pt") as shard:
            for key in shard.keys():  # noqa: SIM118 (not a mapping: it has no iterator)
                weights[key] = shard.get_tensor(key).double().numpy()
    return weights


def inverse_frequencies(config: dict[str, Any]) -> Float64:
    """RoPE frequencies [d/2], with Llama 3's stretching of the long wavelengths."""
    rope = config["rope_parameters"]
    theta, kind = rope["rope_theta"], rope["rope_type"]
    d = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    plain: Float64 = float(theta) ** (-np.arange(0, d, 2, dtype=np.float64) / d)
    if kind == "default":
        return plain
    if kind != "llama3":
        raise ValueError(f"rope_type {kind} is not modelled here")
    factor, low, high = rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"]
    context = rope["original_max_position_embeddings"]
    scaled = np.empty_like(plain)
    for i, frequency in enumerate(plain):
        turns = context * frequency / (2 * math.pi)  # full turns within the original context
        if turns > high:
            scaled[i] = frequency
        elif turns < low:
            scaled[i] = frequency / factor
        else:
            smooth = (turns - low) / (high - low)
            scaled[i] = (1 - smooth) * frequency / factor + smooth * frequency
    return scaled


# --- The dense parts of a layer ---------------------------------------------------------------------------


def rms_norm(x: Float64, weight: Float64, eps: float) -> Float64:
    y: Float64 = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight
    return y


def linear(model: Model, x: Float64, name: str) -> Float64:
    y: Float64 = x @ model.weights[name + ".weight"].T
    bias = model.weights.get(name + ".bias")
    return y if bias is None else y + bias


def rotate(x: Float64, positions: Float64, inv_freq: Float64) -> Float64:
    """RoPE on x [n, heads, d] at positions [n]; the pair of entry i is entry i + d/2."""
    # transformers rounds frequencies and angles to float32, whatever the model's dtype, and so makes that part
    # of the model: with a float32 `inv_freq` this does the same, with a float64 one it is exact.
    angle = (positions[:, None, None].astype(inv_freq.dtype) * inv_freq).astype(np.float64)  # [n, 1, d/2]
    a, b = np.split(x, 2, axis=-1)
    cos, sin = np.cos(angle), np.sin(angle)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def project_qkv(model: Model, layer: int, x: Float64, start: int) -> tuple[Float64, Float64, Float64]:
    """x [n, hidden] at positions start … start + n - 1 -> q [n, Hq, d], k and v [n, Hkv, d], RoPE applied."""
    prefix = f"model.layers.{layer}."
    n, d = len(x), model.head_size
    normed = rms_norm(x, model.weights[prefix + "input_layernorm.weight"], model.eps)
    q = linear(model, normed, prefix + "self_attn.q_proj").reshape(n, model.query_heads, d)
    k = linear(model, normed, prefix + "self_attn.k_proj").reshape(n, model.kv_heads, d)
    v = linear(model, normed, prefix + "self_attn.v_proj").reshape(n, model.kv_heads, d)
    q_norm = model.weights.get(prefix + "self_attn.q_norm.weight")  # Qwen3: [d], every head
    if q_norm is not None:
        q = rms_norm(q, q_norm, model.eps)
        k = rms_norm(k, model.weights[prefix + "self_attn.k_norm.weight"], model.eps)
    positions = np.arange(start, start + n, dtype=np.float64)
    return rotate(q, positions, model.inv_freq), rotate(k, positions, model.inv_freq), v


def finish_layer(model: Model, layer: int, x: Float64, attention: Float64) -> Float64:
    """Output projection, MLP and both residuals: x [n, hidden], attention [n, Hq, d] -> [n, hidden]."""
    prefix = f"model.layers.{layer}."
    x = x + linear(model, attention.reshape(len(x), -1), prefix + "self_attn.o_proj")
    normed = rms_norm(x, model.weights[prefix + "post_attention_layernorm.weight"], model.eps)
    gate = linear(model, normed, prefix + "mlp.gate_proj")
    # silu(g) = g * sigmoid(g), written with tanh because exp(-g) overflows for very negative g.
    gated = gate * 0.5 * (1 + np.tanh(gate / 2)) * linear(model, normed, prefix + "mlp.up_proj")
    return x + linear(model, gated, prefix + "mlp.down_proj")


def final_norm(model: Model, x: Float64) -> Float64:
    return rms_norm(x, model.weights["model.norm.weight"], model.eps)


def logits_of(model: Model, hidden: Float64) -> Float64:
    """Normed hidden states [n, hidden] -> logits [n, vocab]."""
    return linear(model, hidden, "lm_head")


def logprobs_of(model: Model, hidden: Float64, ids: Ids) -> Float64:
    """log p(ids[t + 1] | ids[: t + 1]) as [N - 1], without holding all logits at once."""
    following = np.asarray(ids)[1:]
    parts = [np.zeros(0)]
    for start in range(0, len(following), ROWS):
        chosen = following[start : start + ROWS]
        logits = logits_of(model, hidden[start : start + len(chosen)])
        top = logits.max(axis=1)
        normaliser = top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
        parts.append(logits[np.arange(len(chosen)), chosen] - normaliser)
    return np.concatenate(parts)


# --- Attention over explicit key sets ---------------------------------------------------------------------


def masked_attention(
    q: Float64, k: Float64, v: Float64, allowed: NDArray[np.bool_], scale: float
) -> tuple[Float64, Float64]:
    """One head, one softmax a query over the keys that `allowed` [n, K] marks.

    q [n, d]; k, v [K, d] -> output [n, d] and the column sums [K] of the probabilities. A query that may
    see nothing gets output 0 and adds nothing to the sums.
    """
    columns = np.flatnonzero(allowed.any(axis=0))  # keys that nobody sees cost nothing
    sums = np.zeros(len(k))
    if columns.size == 0:
        return np.zeros_like(q), sums
    keep = allowed[:, columns]
    weights = (scale * q) @ k[columns].T  # [n, visible]
    weights[~keep] = -np.inf
    top = weights.max(axis=1, keepdims=True)
    weights -= np.where(np.isfinite(top), top, 0.0)
    np.exp(weights, out=weights)
    total = weights.sum(axis=1)  # [n]
    inverse = np.divide(1.0, total, out=np.zeros_like(total), where=total > 0)
    sums[columns] = inverse @ weights
    return (weights @ v[columns]) * inverse[:, None], sums


def hidden_under(attend: Attend, model: Model, ids: Ids) -> Float64:
    """Final normed hidden states [N, hidden] under any attention of a layer's whole prompt."""
    x = model.weights["model.embed_tokens.weight"][np.asarray(ids)]
    for layer in range(model.layers):
        x = finish_layer(model, layer, x, attend(*project_qkv(model, layer, x, 0)))
    return final_norm(model, x)


def full_hidden(model: Model, ids: Ids) -> Float64:
    """The same under plain causal attention."""

    def attend(q: Float64, k: Float64, v: Float64) -> Float64:
        attention = np.empty_like(q)
        for start in range(0, len(q), ROWS):
            stop = min(start + ROWS, len(q))
            causal = np.arange(stop)[None, :] <= np.arange(start, stop)[:, None]
            for h in range(model.query_heads):
                kv = h // (model.query_heads // model.kv_heads)
                attention[start:stop, h], _ = masked_attention(
                    q[start:stop, h], k[:stop, kv], v[:stop, kv], causal, model.scale
                )
        return attention

    return hidden_under(attend, model, ids)


def full_logits(model: Model, ids: Ids) -> Float64:
    return logits_of(model, full_hidden(model, ids))


def full_logprobs(model: Model, ids: Ids) -> Float64:
    return logprobs_of(model, full_hidden(model, ids), ids)


# --- Block-sparse prefill ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Selection:
    """One memory set and what it was chosen from: chunk [start, stop) and the memory before it."""

    start: int
    stop: int
    score: Float64  # [stop, Hs], as it stood at the selection
    before: Int32  # [Hs, Mp]
    memory: Int32  # [Hs, M]
    margin: Float64  # [Hs], see operators.selection_margin


@dataclass
class H2ORun:
    """What `h2o_run` leaves behind; a list index is a layer."""

    model: Model
    ids: NDArray[np.int64]
    hidden: Float64  # [N, hidden], normed
    scores: list[Float64]  # [N, Hs] each, after the whole prompt; evicted entries keep their last score
    selections: list[list[Selection]] = field(default_factory=list)  # [layer][chunk]
    score_heads: int = 0

    @cached_property
    def logits(self) -> Float64:
        return logits_of(self.model, self.hidden)

    @cached_property
    def logprobs(self) -> Float64:
        return logprobs_of(self.model, self.hidden, self.ids)

    @property
    def memory_sets(self) -> list[Int32]:
        """The last memory set of every layer, [Hs, M]; [Hs, 0] when the prompt needed none."""
        empty = np.zeros((self.score_heads, 0), np.int32)
        return [steps[-1].memory if steps else empty for steps in self.selections]

    @property
    def margins(self) -> Float64:
        """Smallest relative score gap at the selection border, [layers, selections]."""
        return np.array([[step.margin.min() for step in steps] for steps in self.selections])


@dataclass
class _LayerState:
    """What one layer remembers between chunks; rows beyond the current chunk are not written yet."""

    k: Float64  # [N, Hkv, d]
    v: Float64  # [N, Hkv, d]
    score: Float64  # [N, Hs]
    memory: Int32  # [Hs, M]


def h2o_run(
    model: Model,
    ids: Ids,
    *,
    chunk_size: int,
    local: int,
    heavy: int,
    score: Literal["colsum", "window"] = "colsum",
    window: int | None = None,
    heads: Literal["auto", "kv", "query"] = "kv",
    dense_tail: int = 128,
) -> H2ORun:
    """Prefill `ids` from an empty cache. The settings are those of the runtime's policies.

    A history no larger than local + heavy is kept whole. `window` is required by score="window".
    """
    tokens: NDArray[np.int64] = np.asarray(ids, np.int64)
    length = len(tokens)
    voters = window if score == "window" else None
    sets = model.query_heads if heads == "query" else model.kv_heads
    states = [
        _LayerState(
            k=np.zeros((length, model.kv_heads, model.head_size)),
            v=np.zeros((length, model.kv_heads, model.head_size)),
            score=np.zeros((length, sets)),
            memory=np.zeros((sets, 0), np.int32),
        )
        for _ in range(model.layers)
    ]
    selections: list[list[Selection]] = [[] for _ in range(model.layers)]
    hidden = []
    for start in range(0, length, chunk_size):
        stop = min(start + chunk_size, length)
        x = model.weights["model.embed_tokens.weight"][tokens[start:stop]]
        for layer, state in enumerate(states):
            q, state.k[start:stop], state.v[start:stop] = project_qkv(model, layer, x, start)
            attention = _attend_and_score(model, state, q, start, stop, length - dense_tail, voters)
            if stop < length:
                selections[layer].append(_select(state, start, stop, local, heavy))
                state.memory = selections[layer][-1].memory
            x = finish_layer(model, layer, x, attention)
        hidden.append(final_norm(model, x))
    scores = [state.score for state in states]
    return H2ORun(model, tokens, np.concatenate(hidden), scores, selections, sets)


def _attend_and_score(
    model: Model, state: _LayerState, q: Float64, start: int, stop: int, tail_start: int, window: int | None
) -> Float64:
    """Outputs [n, Hq, d] of chunk [start, stop); updates state.score by the column sums or window votes.

    Queries from position `tail_start` on attend to everything before them, but score as all others do.
    """
    query, key = np.arange(start, stop)[:, None], np.arange(stop)[None, :]
    causal = key <= query  # [n, stop]
    intra = causal & (key >= start)
    tail = (query >= tail_start)[:, 0]
    attention = np.empty_like(q)
    heads = state.memory.shape[0]
    state.score[start:stop] = 0.0
    for h in range(model.query_heads):
        s = h // (model.query_heads // heads)
        kv = h // (model.query_heads // model.kv_heads)
        k, v = state.k[:stop, kv], state.v[:stop, kv]
        inter = np.zeros_like(causal)
        inter[:, state.memory[s]] = True
        visible = np.where(tail[:, None], causal, intra | inter)
        attention[:, h], _ = masked_attention(q[:, h], k, v, visible, model.scale)

        if window is None:
            for own_pass in (intra, inter):
                _, sums = masked_attention(q[:, h], k, v, own_pass, model.scale)
                state.score[:stop, s] += sums
        else:
            if h % (model.query_heads // heads) == 0:  # first of its group: votes replace older scores
                state.score[state.memory[s], s] = 0.0
            voters = (intra | inter)[-window:]
            _, sums = masked_attention(q[-window:, h], k, v, voters, model.scale)
            state.score[:stop, s] += sums
    return attention


def _select(state: _LayerState, start: int, stop: int, local: int, heavy: int) -> Selection:
    heads, before = state.memory.shape
    score = state.score[:stop].copy()
    if before + stop - start <= local + heavy:
        chunk = np.broadcast_to(np.arange(start, stop, dtype=np.int32), (heads, stop - start))
        memory = np.concatenate([state.memory, chunk], axis=1)
        margin = np.full(heads, np.inf)
    else:
        memory = memory_select(score, state.memory, start, stop, local=local, heavy=heavy)
        margin = selection_margin(score, state.memory, start, stop, local=local, heavy=heavy)
    return Selection(start, stop, score, state.memory, memory, margin)
