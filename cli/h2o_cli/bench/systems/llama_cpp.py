"""llama.cpp, through llama-cpp-python's bindings of its C interface."""

from __future__ import annotations

import ctypes
import importlib
from typing import Any

import numpy as np

from h2o_cli.bench.systems.system import Absent, Ids, Settings, System

F32, F16 = 0, 1  # ggml types


class LlamaCppSystem(System):
    """settings: file, threads, dtype, flash_attention, micro_batch."""

    def __init__(self, settings: Settings) -> None:
        llama_cpp: Any = importlib.import_module("llama_cpp")
        self._settings = settings
        self._api = llama_cpp
        self.version = f"llama-cpp-python {llama_cpp.__version__}"
        # Discard its log; the callback must outlive the library's use of it.
        self._silence = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self._silence, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()

    def open(self, context: int) -> None:
        api, settings = self._api, self._settings
        loading = api.llama_model_default_params()
        loading.n_gpu_layers = 0
        self._model = api.llama_model_load_from_file(settings["file"].encode(), loading)
        if not self._model:
            raise Absent(f"llama.cpp cannot load {settings['file']}")
        parameters = api.llama_context_default_params()
        parameters.n_ctx = context
        parameters.n_batch = context
        parameters.n_ubatch = min(settings["micro_batch"], context)
        parameters.n_threads = parameters.n_threads_batch = settings["threads"]
        parameters.type_k = parameters.type_v = F16 if settings["dtype"] == "float16" else F32
        if hasattr(parameters, "flash_attn_type"):
            parameters.flash_attn_type = int(settings["flash_attention"])
        else:
            parameters.flash_attn = settings["flash_attention"]
        if hasattr(parameters, "swa_full"):
            # As in its own programs: layers with a window keep only what they read.
            parameters.swa_full = False
        parameters.no_perf = True
        self._context = api.llama_init_from_model(self._model, parameters)
        if not self._context:
            raise Absent(f"llama.cpp cannot make a context of {context} tokens")
        self._vocabulary = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self._model))

    def prefill(self, ids: Ids) -> int:
        api = self._api
        if hasattr(api, "llama_memory_clear"):
            api.llama_memory_clear(api.llama_get_memory(self._context), False)
        else:
            api.llama_kv_self_clear(self._context)
        self._run(ids)
        logits = api.llama_get_logits_ith(self._context, -1)
        return int(np.argmax(np.ctypeslib.as_array(logits, shape=(self._vocabulary,))))

    def decode(self, token: int) -> None:
        self._run(np.array([token]))
        self._api.llama_get_logits_ith(self._context, -1)  # waits for the result

    def _run(self, ids: Ids) -> None:
        tokens = (self._api.llama_token * len(ids))(*ids.tolist())
        status = self._api.llama_decode(self._context, self._api.llama_batch_get_one(tokens, len(ids)))
        if status:
            raise Absent(f"llama.cpp could not read the prompt: llama_decode returned {status}")
