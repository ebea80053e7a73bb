"""Programs that read one GGUF file: this one, llama.cpp and transformers. Each gives logits after given tokens."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from h2o_runtime import Generator
from h2o_runtime.policies.prefill import Full

Ids = NDArray[np.int64]
Logits = NDArray[np.float32]
FULL = Full()
AT_ONCE = 256  # rows of logits


class Reader(Protocol):
    def every(self, ids: Ids) -> Iterator[Logits]:
        """After each of a text's tokens, some rows at once: [rows, vocab]."""

    def begin(self, ids: Ids) -> Logits:
        """After a prompt's last token, [vocab]."""

    def step(self, token: int) -> Logits:
        """After one more, [vocab]."""


class Bundle:
    """What h2o-export made of the file, with exact attention."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator

    def every(self, ids: Ids) -> Iterator[Logits]:
        for _, logits in self._generator.each_logits(ids, FULL):
            yield logits

    def begin(self, ids: Ids) -> Logits:
        return self._generator.prefill(ids, FULL, reuse=False)

    def step(self, token: int) -> Logits:
        return self._generator.decode(token)


class LlamaCpp:
    """llama-cpp-python, its cache in float32. Products with integers round activations to 8 bits."""

    def __init__(self, file: Path, context: int, threads: int) -> None:
        llama_cpp: Any = importlib.import_module("llama_cpp")
        self._model = llama_cpp.Llama(
            str(file),
            n_ctx=context,
            n_batch=AT_ONCE,
            n_threads=threads,
            n_threads_batch=threads,
            logits_all=True,
            type_k=llama_cpp.GGML_TYPE_F32,
            type_v=llama_cpp.GGML_TYPE_F32,
            verbose=False,
        )

    def tokens(self, text: str) -> list[int]:
        found: list[int] = self._model.tokenize(text.encode(), add_bos=True, special=False)
        return found

    def every(self, ids: Ids) -> Iterator[Logits]:
        self._model.reset()
        for first in range(0, len(ids), AT_ONCE):
            rows = slice(first, min(first + AT_ONCE, len(ids)))
            self._model.eval(ids[rows].tolist())
            yield self._model.scores[rows]

    def begin(self, ids: Ids) -> Logits:
        self._model.reset()
        self._model.eval(ids.tolist())
        return self._last()

    def step(self, token: int) -> Logits:
        self._model.eval([token])
        return self._last()

    def _last(self) -> Logits:
        logits: Logits = self._model.scores[self._model.n_tokens - 1]
        return logits


def as_floats(file: Path, copy: Path) -> None:
    """Write the same weights as float32: of these llama.cpp rounds nothing."""
    llama_cpp: Any = importlib.import_module("llama_cpp")
    settings = llama_cpp.llama_model_quantize_default_params()
    settings.ftype, settings.allow_requantize = llama_cpp.LLAMA_FTYPE_ALL_F32, True
    if llama_cpp.llama_model_quantize(str(file).encode(), str(copy).encode(), settings):
        raise OSError(f"{copy}: llama.cpp could not write it")


class Transformers:
    """The file's weights as float32."""

    def __init__(self, file: Path, threads: int) -> None:
        self._torch: Any = importlib.import_module("torch")
        self._torch.set_num_threads(threads)
        transformers: Any = importlib.import_module("transformers")
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=self._torch.float32
        )
        self._past: Any = None

    def every(self, ids: Ids) -> Iterator[Logits]:
        self._past = None
        for first in range(0, len(ids), AT_ONCE):
            yield self._read(ids[first : first + AT_ONCE], keep=0)

    def begin(self, ids: Ids) -> Logits:
        self._past = None
        last: Logits = self._read(ids, keep=1)[-1]
        return last

    def step(self, token: int) -> Logits:
        last: Logits = self._read(np.array([token]), keep=1)[-1]
        return last

    def _read(self, ids: Ids, keep: int) -> Logits:
        with self._torch.inference_mode():
            given = self._torch.from_numpy(ids)[None]
            output = self._model(given, past_key_values=self._past, use_cache=True, logits_to_keep=keep)
        self._past = output.past_key_values
        logits: Logits = output.logits[0].numpy()
        return logits


@contextmanager
def bundle(folder: Path, context: int, threads: int) -> Iterator[Bundle]:
    with Generator.load(folder, context=context, threads=threads, device="cpu") as generator:
        yield Bundle(generator)
