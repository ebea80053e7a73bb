"""The buffers between dense graphs and attention, allocated once for a context."""

from __future__ import annotations

from typing import Any

import numpy as np

from h2o_runtime.devices import Device, Tensor
from h2o_runtime.layer_spec import rotation_names
from h2o_runtime.model_spec import ModelSpec

LOGITS_BYTES = 16 << 20  # the head runs on as many rows at once as fit


def logits_rows(model: ModelSpec, capacity: int) -> int:
    """The number of logits rows at once, at least one."""
    return max(1, min(capacity, LOGITS_BYTES // (4 * model.vocab_size)))


class Activations:
    """Rows are the new tokens of one call, at most `capacity` of them.

    q, attention       of each layer, [cap, Hq, d] and [cap, Hq, dv]; layers of one shape share a buffer. Layers of
                       different shapes do not: dense graphs of a layer run beside attention of the one before, on
                       other rows, which must be other memory
    gates              of each layer that has one [cap, gate_size], else None; layers beside each other do not share
    rotations          of each table of angles cosines and sines by their names, float32 [cap, d/2]
    tokens, positions  int64 [cap]: of this call; 0, 1, 2, … for every call
    logits             float32 [rows, vocab], `rows` being few: the head runs only on rows that are asked for
    hidden             [rows, D], what it read, where a draft layer reads it too; else None

    The residual stream has two buffers, because a graph may not write over its own input: a layer reads the
    one and writes the other. Where layers have embeddings of their own, what begins the stream has a third, as all
    of them read it.
    """

    def __init__(self, model: ModelSpec, capacity: int, device: Device) -> None:
        dtype = np.dtype(model.dtype)
        self.q = _shared(query_rows(model), capacity, dtype, device)
        self.attention = _shared(attention_rows(model), capacity, dtype, device)
        self.gates = _alternating([spec.gate_size for spec in model.each_layer], capacity, dtype, device)
        self.rotations = [
            {name: device.empty((capacity, size // 2), np.float32) for name in rotation_names(table)}
            for table, size in enumerate(model.rotary_sizes)
        ]
        self.tokens = device.empty((capacity,), np.int64)
        self.positions = device.empty((capacity,), np.int64)
        device.upload(np.arange(capacity, dtype=np.int64), self.positions)
        self.logits = device.empty((logits_rows(model, capacity), model.vocab_size), np.float32)
        hidden = (len(self.logits), model.hidden_size)
        self.hidden = None if model.draft is None else device.empty(hidden, dtype)
        buffers = residual_buffers(model)
        self._residual = [device.empty((capacity, model.hidden_size), dtype) for _ in range(buffers)]
        self._first = 2 if buffers > 2 else 0

    def residual(self, index: int) -> Tensor:
        """Output buffer of dense graph `index`, [cap, D]; graph `index` + 1 reads it."""
        return self._residual[index % 2 if index else self._first]

    @property
    def embedded(self) -> Tensor:
        """What begins the residual stream, where it stays: [cap, D]."""
        return self.residual(0)

    @property
    def nbytes(self) -> int:
        shared = {id(array): array for array in (*self.q, *self.attention, *self.gates)}.values()
        tables = (tensor for table in self.rotations for tensor in table.values())
        others = (*tables, self.tokens, self.positions, self.logits, self.hidden, *self._residual)
        return sum(array.nbytes for array in (*shared, *others) if array is not None)


def residual_buffers(model: ModelSpec) -> int:
    """How many the residual stream has."""
    return 3 if model.layer_embedding else 2


def query_rows(model: ModelSpec) -> list[tuple[int, int]]:
    """Heads and head size of each layer's queries, from the dense graphs."""
    return [(spec.query_heads, spec.query_size) for spec in model.each_layer]


def attention_rows(model: ModelSpec) -> list[tuple[int, int]]:
    """Heads and head size of each layer's attention output, for the dense graphs."""
    return [(spec.query_heads, spec.out_size) for spec in model.each_layer]


def activation_bytes(model: ModelSpec, capacity: int) -> int:
    """Bytes of the buffers."""
    item = np.dtype(model.dtype).itemsize
    rows = (*set(query_rows(model)), *set(attention_rows(model)))
    gates = {(spec.gate_size, i % 2) for i, spec in enumerate(model.each_layer)}
    row = sum(heads * size for heads, size in rows) + sum(size for size, _ in gates)
    row += residual_buffers(model) * model.hidden_size
    logits = logits_rows(model, capacity) * 4 * model.vocab_size
    if model.draft is not None:
        logits += logits_rows(model, capacity) * model.hidden_size * item
    return capacity * (row * item + sum(model.rotary_sizes) * 4 + 16) + logits


def _shared(rows: list[tuple[int, int]], capacity: int, dtype: np.dtype[Any], device: Device) -> list[Tensor]:
    buffers = {row: device.empty((capacity, *row), dtype) for row in dict.fromkeys(rows)}
    return [buffers[row] for row in rows]


def _alternating(
    sizes: list[int], capacity: int, dtype: np.dtype[Any], device: Device
) -> list[Tensor | None]:
    """As the residual stream: a dense graph reads one and writes another."""
    keys = [(size, i % 2) for i, size in enumerate(sizes)]
    buffers = {
        key: device.empty((capacity, key[0]), dtype) if key[0] else None for key in dict.fromkeys(keys)
    }
    return [buffers[key] for key in keys]
