"""One attention layer on the GPU: its tensors, and the two-phase prefill over them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from bench.gpu_check.library import Library, offset

CHUNK, LOCAL, HEAVY = 1024, 256, 256
SLOTS = LOCAL + HEAVY
QUERY_HEADS, KV_HEADS = 32, 8
VOTERS = 64  # queries of a chunk that vote under the window rule


class Layer:
    """Random q, k, v of `n` tokens in float16, and everything a prefill writes, allocated once."""

    def __init__(self, library: Library, n: int, head_size: int) -> None:
        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Any:
            return torch.zeros(shape, dtype=dtype)

        self.kernels, self.n, self.d, self.chunk = library, n, head_size, CHUNK
        self.shape = library.Shape(QUERY_HEADS, KV_HEADS, KV_HEADS, head_size, head_size**-0.5, 1)
        self.q = torch.randn(n, QUERY_HEADS, head_size, dtype=torch.float16)
        self.k = torch.randn(n, KV_HEADS, head_size, dtype=torch.float16)
        self.v = torch.randn(n, KV_HEADS, head_size, dtype=torch.float16)
        self.kv = library.KV(k=self.k.data_ptr(), v=self.v.data_ptr(), rows=n, dtype=1)  # float16
        self.o = torch.empty_like(self.q)
        self.m, self.l = zeros(n, QUERY_HEADS), zeros(n, QUERY_HEADS)
        self.score = zeros(n, KV_HEADS)
        self.colsum = zeros(KV_HEADS, SLOTS)
        self.chunks = -(-n // CHUNK)
        self.memory, self.sets = (zeros(self.chunks, KV_HEADS, SLOTS, dtype=torch.int32) for _ in range(2))
        self.last, self.set_scores = (
            zeros(KV_HEADS, SLOTS, dtype=torch.int32),
            zeros(self.chunks, KV_HEADS, SLOTS),
        )
        self.length = torch.tensor([n], dtype=torch.int64)
        need = max(
            library.memory_attention_workspace(self.shape, CHUNK, SLOTS),
            library.cached_attention_workspace(self.shape, 128, n),
            library.cached_attention_workspace(self.shape, 1, n),
            library.candidate_score_workspace(self.shape, VOTERS, CHUNK, SLOTS),
        )
        self.workspace = zeros(need, dtype=torch.uint8)
        self.arrivals = zeros(QUERY_HEADS, dtype=torch.int32)

    def run(self, operator: Callable[..., int], *arguments: Any) -> None:
        """On torch's current stream."""
        operator(torch.cuda.current_stream().cuda_stream, *arguments)

    def _state(self, row: int = 0) -> Any:
        return self.kernels.State(offset(self.o, row), offset(self.m, row), offset(self.l, row))

    def phase1(self, scores: bool = True) -> None:
        score = self.score if scores else None
        self.run(
            self.kernels.chunked_intra_attention, self.shape, self.n, CHUNK, self.q, self.k, self.v,
            self._state(), score,
        )  # fmt: skip

    def step(self, chunk: int, replace: bool) -> None:
        """The end of chunk `chunk`: adds its sums to the scores of its memory set, and selects the next
        set.
        """
        before = None if chunk == 0 else self.memory[chunk - 1]
        slots, values = (0, None) if chunk == 0 else (SLOTS, self.colsum)
        first, stop = chunk * CHUNK, min(self.n, (chunk + 1) * CHUNK)
        kept = (self.memory[chunk], self.last, self.sets[chunk], self.set_scores[chunk])
        self.run(
            self.kernels.memory_step, KV_HEADS, self.n, slots, LOCAL, HEAVY, first, stop, before, values,
            replace, self.score, self.kernels.NextMemory(*(each.data_ptr() for each in kept)),
        )  # fmt: skip

    def attend_memory(self, chunk: int, scores: bool = True) -> None:
        """Chunk `chunk` attends to the memory set of the previous one; with scores, also its column sums."""
        first, memory = chunk * CHUNK, self.memory[chunk - 1]
        rows, state = min(CHUNK, self.n - first), self._state(first)
        colsum = self.colsum if scores else None
        self.run(
            self.kernels.memory_fused_attention, self.shape, rows, SLOTS, offset(self.q, first), self.kv, memory,
            state, state, colsum, self.workspace, self.workspace.numel(),
        )  # fmt: skip

    def attend_memories(self) -> None:
        """All chunks but the first attend to the previous chunks' memory sets at once."""
        state = self._state(CHUNK)
        self.run(
            self.kernels.tiled_memory_attention, self.shape, self.n - CHUNK, CHUNK, SLOTS, offset(self.q, CHUNK),
            self.kv, self.memory, state, state,
        )  # fmt: skip

    def prefill(self) -> None:
        """Both phases, including scores, as in the runtime."""
        self.phase1()
        for chunk in range(self.chunks - 1):
            self.step(chunk, replace=False)
            self.attend_memory(chunk + 1)

    def vote(self, chunk: int) -> None:
        """The last queries of chunk `chunk` rate it and its memory set again."""
        first, stop = chunk * CHUNK, min(self.n, (chunk + 1) * CHUNK)
        voters, slots = min(VOTERS, stop - first), 0 if chunk == 0 else SLOTS
        memory = self.memory[chunk - 1]
        self.run(
            self.kernels.candidate_score, self.shape, voters, stop - first, slots,
            offset(self.q, stop - voters), offset(self.k, first), self.kv, memory, self.colsum,
            offset(self.score, first), self.workspace, self.workspace.numel(),
        )  # fmt: skip

    def prefill_window(self) -> None:
        """Both phases under the window rule: no column sums over whole chunks."""
        self.phase1(scores=False)
        for chunk in range(self.chunks - 1):
            self.vote(chunk)
            self.step(chunk, replace=True)
        if self.chunks > 1:
            self.attend_memories()

    def cached(self, rows: int) -> None:
        """The last `rows` tokens attend to the whole cache."""
        first = self.n - rows
        self.run(
            self.kernels.cached_attention, self.shape, rows, offset(self.q, first), self.kv, self.length,
            offset(self.o, first), self.workspace, self.workspace.numel(),
        )  # fmt: skip

    def decode_step(self) -> None:
        """The last token's row is stored in the cache again, and attends to all of it."""
        last = self.n - 1
        self.run(
            self.kernels.step_attention, self.shape, offset(self.q, last), offset(self.k, last),
            offset(self.v, last), self.kv, self.length, offset(self.o, last), self.arrivals, self.workspace,
            self.workspace.numel(),
        )  # fmt: skip
