"""llama.cpp's decode step of several conversations, through llama-cpp-python's bindings of its C interface."""

from __future__ import annotations

import ctypes
import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray


class LlamaRows:
    """Conversations of one length in one context, with float16 rows and flash attention."""

    def __init__(self, file: str, conversations: int, length: int, threads: int) -> None:
        """Raises ImportError without llama-cpp-python, RuntimeError where llama.cpp refuses."""
        llama_cpp: Any = importlib.import_module("llama_cpp")
        self._api = llama_cpp
        self._silence = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self._silence, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        loading = llama_cpp.llama_model_default_params()
        loading.n_gpu_layers = 0
        self._model = llama_cpp.llama_model_load_from_file(file.encode(), loading)
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {file}")
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx = conversations * (length + 256)  # each has an equal part, of a multiple of 256
        settings.n_batch = length
        settings.n_seq_max = conversations
        settings.n_threads = settings.n_threads_batch = threads
        settings.flash_attn_type = 1
        settings.no_perf = True
        self._context = llama_cpp.llama_init_from_model(self._model, settings)
        if not self._context:
            raise RuntimeError("llama.cpp cannot make the context")
        self._length = length

    def prefill(self, conversation: int, ids: NDArray[np.int64]) -> None:
        self._run([(int(token), place, conversation) for place, token in enumerate(ids)])

    def step(self, rows: int) -> None:
        """A token of each of the first conversations; the logits are ready. Nothing stays of it."""
        api = self._api
        self._run([(5 + i, self._length, i) for i in range(rows)])
        api.llama_get_logits_ith(self._context, -1)  # waits for the result
        memory = api.llama_get_memory(self._context)
        for i in range(rows):
            api.llama_memory_seq_rm(memory, i, self._length, -1)

    def _run(self, tokens: list[tuple[int, int, int]]) -> None:
        """tokens: their numbers, places and conversations."""
        api, batch = self._api, self._api.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, (token, place, conversation) in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, place, 1
            batch.seq_id[i][0], batch.logits[i] = conversation, place == self._length
        status = api.llama_decode(self._context, batch)
        api.llama_batch_free(batch)
        if status:
            raise RuntimeError(f"llama_decode returned {status}")
