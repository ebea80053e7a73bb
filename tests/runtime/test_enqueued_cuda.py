"""How much is enqueued on a GPU for a chunk's attention: small launches in a chain are what a chunk costs."""

from __future__ import annotations

import ctypes
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tests.prefill import prefill_of

from h2o_runtime.caches.reuse import Prefix
from h2o_runtime.devices.cuda import CudaDevice
from h2o_runtime.kv import KV
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.policies.prefill import LayerCall, PrefillPolicy, PromptCall
from h2o_runtime.providers.cuda import NativeCudaProvider
from h2o_runtime.schedule import Span

CHUNK, CHUNKS = 48, 9
SMALL: dict[str, Any] = {"chunk_size": CHUNK, "local": 12, "heavy": 20, "dense_tail": 0}
MODEL = ModelSpec(
    family="llama",
    hidden_size=128,
    layers=1,
    query_heads=4,
    kv_heads=2,
    head_size=32,
    intermediate_size=1,
    vocab_size=1,
    max_position_embeddings=CHUNK * CHUNKS,
    parameters=1,
    tied=True,
    scale=32**-0.5,
    dtype="float32",
)


class Layer:
    """Random rows on the emulated GPU, all attended to by one policy."""

    def __init__(self, module: ModuleType, policy: PrefillPolicy[Any], dtype: str = "float32") -> None:
        library = ctypes.CDLL(module.__file__)
        self._operations = library.emulated_operations
        self._operations.restype = ctypes.c_size_t
        self._device, self._policy = CudaDevice(), policy
        self._provider = NativeCudaProvider(self._device)
        model = MODEL.model_copy(update={"dtype": dtype})
        self._provider.activate(model.attention)
        self._state: Any = self._policy.new_state(model, CHUNK * CHUNKS, self._device)
        rng = np.random.default_rng(0)
        self._rows = {}
        for name, heads in (("q", 4), ("k", 2), ("v", 2), ("o", 4)):
            values = rng.standard_normal((CHUNK * CHUNKS, heads, 32)).astype(dtype)
            self._rows[name] = self._device.empty(values.shape, values.dtype)
            self._device.upload(values, self._rows[name])

    def enqueued(self, chunks: int) -> int:
        """Stream operations of a layer for a prompt of so many chunks: launches, copies, events, waits."""
        n = chunks * CHUNK
        self._policy.start_prompt(PromptCall(n, 0, Prefix.NONE, np.zeros(0, np.bool_)), self._state)
        flow = self._device.flow([Span(0, n)])
        rows = {name: array[:n] for name, array in self._rows.items()}
        call = LayerCall(
            layer=0,
            **rows,
            kv=KV(rows["k"], rows["v"], n),
            past=0,
            prefix=Prefix.NONE,
            provider=self._provider,
            timer=self._device.stopwatch(self._policy.phases),
            flow=flow,
            checkpoint=lambda done: None,
        )
        with flow.layer(lambda tile: None):
            before = self._operations()
            self._policy.attend(call, self._state)
            count: int = self._operations() - before
        self._device.synchronize()
        return count


@pytest.mark.parametrize(
    ("score", "own", "dtype", "a_chunk", "a_batch"),
    [
        pytest.param("colsum", {}, "float32", 4, 8, marks=pytest.mark.nightly),
        pytest.param("window", {"window": 8}, "float32", 6, 8, marks=pytest.mark.nightly),
        ("query", {"tile": 16, "queries": 8, "candidates": 32}, "float32", 0, 16),
        ("query", {"tile": 16, "queries": 8, "candidates": 32}, "float16", 0, 13),
    ],
)
def test_operations_of_a_chunk_and_of_a_logical_batch(
    emulated_cuda: ModuleType, score: str, own: dict[str, Any], dtype: str, a_chunk: int, a_batch: int
) -> None:
    """One chunk more in a batch, and one batch more of as many chunks."""
    settings = {**SMALL, "score": score, **own}
    one = Layer(emulated_cuda, prefill_of(**settings, batch_size=CHUNK * CHUNKS), dtype)
    counts = [one.enqueued(chunks) for chunks in (3, 4, 6)]
    assert [counts[1] - counts[0], (counts[2] - counts[1]) / 2] == [a_chunk, a_chunk]
    three = Layer(emulated_cuda, prefill_of(**settings, batch_size=CHUNK * 3), dtype)
    counts = [three.enqueued(chunks) for chunks in (3, 6, 9)]
    assert [b - a - 3 * a_chunk for a, b in pairwise(counts)] == [a_batch, a_batch]
