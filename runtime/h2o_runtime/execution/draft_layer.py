"""Runs the layer that drafts a model's next tokens (multi-token prediction; DeepSeek-AI, 2024, "DeepSeek-V3").

For a token it reads the token's embedding, and what the model's head read of the token before. It attends to its
own rows of earlier tokens. Its output goes into the model's head, and stands for what that read where a further
token is drafted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.attention.provider import AttentionProvider
from h2o_runtime.backend import Backend
from h2o_runtime.bundles.manifest import GraphSpec, Manifest
from h2o_runtime.kv import KV
from h2o_runtime.layer_spec import LayerSpec
from h2o_runtime.operators import CACHED_ATTENTION

READ = 64  # tokens of one call
KEPT = 512  # rows that are kept, at least, of those that there are

Float32 = NDArray[np.float32]


class DraftRows:
    """The layer's rows of one answer: the last KEPT or more. Positions go on where older rows were dropped.

    k, v    float32 [2 · KEPT, Hkv, d]; of latents v is k, as in `KV`
    length  rows in use
    """

    def __init__(self, spec: LayerSpec) -> None:
        shape = (2 * KEPT, spec.row.heads, spec.row.size)
        self.k = np.zeros(shape, np.float32)
        self.v = self.k if spec.row.shared else np.zeros(shape, np.float32)
        self.length = self.position = 0

    @property
    def stored(self) -> dict[str, Float32]:
        """By the names of the graph that computes them."""
        return KV(self.k, self.v, 0).tensors

    def append(self, new: Mapping[str, Float32], rows: int) -> None:
        """The first `rows` of the new ones, for which there is room."""
        for name, array in self.stored.items():
            array[self.length : self.length + rows] = new[name][:rows]
        self.length, self.position = self.length + rows, self.position + rows

    def make_room(self, rows: int) -> None:
        """For so many more, at most KEPT."""
        if self.length + rows > len(self.k):
            for array in self.stored.values():
                array[:KEPT] = array[self.length - KEPT : self.length].copy()
            self.length = KEPT

    def take_back(self, rows: int) -> None:
        """Drop the last rows."""
        self.length, self.position = self.length - rows, self.position - rows


class DraftLayer:
    """Of one loaded model, for any of its sessions, one call at a time.

    cost  of a drafted token: the weights that it reads, relative to those of a step
    """

    def __init__(self, manifest: Manifest, backend: Backend, provider: AttentionProvider) -> None:
        """provider: active, of the layer's shape. The backend must have loaded the layer (`Backend.load_draft`)."""
        model, spec = backend.model, manifest.model.draft
        assert spec is not None
        self._spec, self._backend, self._provider = spec, backend, provider
        self.cost = _relative_weights(manifest)
        self._tokens, self._positions = np.zeros((2, READ), np.int64)
        self._hidden, self._residual = np.zeros((2, READ, model.hidden_size), np.float32)
        self._q = np.zeros((READ, spec.query_heads, spec.query_size), np.float32)
        self._gate = np.zeros((READ, spec.gate_size), np.float32) if spec.gate_size else None
        self._new = {name: np.zeros_like(array[:READ]) for name, array in DraftRows(spec).stored.items()}
        self._firsts: dict[int, Callable[[], None]] = {}  # calls with the same arrays are bound once
        self._lasts: dict[int, Callable[[], None]] = {}
        self._attention = np.zeros((1, spec.query_heads, spec.out_size), np.float32)
        # Of latents: the query as it attends to them, and what attention then gives.
        self._absorbed = np.zeros((1, spec.query_heads, spec.head_size), np.float32)
        self._context = np.zeros((1, spec.query_heads, spec.value_size), np.float32)
        self._out = np.zeros((1, model.hidden_size), np.float32)
        self._logits = np.zeros((1, model.drafted_tokens), np.float32)

    def new_rows(self) -> DraftRows:
        return DraftRows(self._spec)

    def read(self, rows: DraftRows, tokens: Sequence[int], hidden: Float32) -> None:
        """Append n tokens to the layer's rows, 1 … READ; hidden [n, D] is of the tokens before them."""
        n = len(tokens)
        rows.make_room(n)
        self._tokens[:n], self._hidden[:n] = tokens, hidden
        self._positions[:n] = range(rows.position, rows.position + n)
        self._first(n)()
        rows.append(self._new, n)

    def draft(self, rows: DraftRows, tokens: Sequence[int], hidden: Float32, count: int) -> list[int]:
        """As `read`, then the most likely `count` tokens after these."""
        rows.make_room(len(tokens) + count)
        self.read(rows, tokens, hidden)
        drafted = [self._next(rows, len(tokens) - 1)]
        while len(drafted) < count:
            self.read(rows, drafted[-1:], self._out)
            drafted.append(self._next(rows, 0))
        rows.take_back(count - 1)
        return drafted

    def _next(self, rows: DraftRows, last: int) -> int:
        """The most likely token after the last row, number `last` of the last call."""
        at = slice(last, last + 1)
        self._attend(rows, self._q[at])
        self._last(last)()
        return int(self._logits[0].argmax())

    def _first(self, n: int) -> Callable[[], None]:
        """Runs the graph before attention on n rows."""
        if n not in self._firsts:
            given = {"tokens": self._tokens[:n], "positions": self._positions[:n], "hidden": self._hidden[:n]}
            made = {name: array[:n] for name, array in self._new.items()}
            made |= {"residual_out": self._residual[:n], "q": self._q[:n]}
            if self._gate is not None:
                made["gate_out"] = self._gate[:n]
            self._firsts[n] = self._backend.bound("draft_00", given, made)
        return self._firsts[n]

    def _last(self, row: int) -> Callable[[], None]:
        """Runs the graph after attention on a row of the last call of the first."""
        if row not in self._lasts:
            at = slice(row, row + 1)
            given = {"attention": self._attention, "residual": self._residual[at]}
            if self._gate is not None:
                given["gate"] = self._gate[at]
            made = {"logits": self._logits, "hidden": self._out}
            self._lasts[row] = self._backend.bound("draft_01", given, made)
        return self._lasts[row]

    def _attend(self, rows: DraftRows, q: Float32) -> None:
        """Fill `_attention` for a query [1, Hq, d]."""
        kv = KV(rows.k, rows.v, rows.length)
        if not kv.latent:
            self._provider.run(CACHED_ATTENTION, kv, q=q, o=self._attention)
            return
        self._backend.infer("draft_absorb", {"q": q}, {"absorbed": self._absorbed})
        self._provider.run(CACHED_ATTENTION, kv, q=self._absorbed, o=self._context)
        self._backend.infer("draft_contract", {"context": self._context}, {"attention": self._attention})


def _relative_weights(manifest: Manifest) -> float:
    """Bytes of weights that the draft layer multiplies by, relative to those of the model."""
    weights = manifest.model.weights
    head = 0 if weights is None else weights.table_bytes if manifest.model.tied else weights.head_bytes

    def own(graphs: Sequence[GraphSpec]) -> int:
        files = {file for graph in graphs for file in graph.weights if graph.name in file}
        return sum(manifest.files[file].bytes for file in files)

    drafts = own(manifest.draft_graphs()) + head * manifest.model.drafted_tokens / manifest.model.vocab_size
    return drafts / (own(manifest.dense_graphs()) + head)
