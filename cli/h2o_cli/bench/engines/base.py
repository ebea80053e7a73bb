"""The contract between a worker process and the engine it measures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Settings = dict[str, Any]


class Engine(Protocol):
    """One request at a time, in token ids. Importing its library is done on construction, loading in `open`.

    Raises Absent on construction or in `open` where this machine cannot run it.
    """

    version: str

    def open(self, context: int) -> None:
        """Load the model for at most `context` tokens."""

    def prefill(self, ids: Ids) -> int:
        """Run a whole prompt from an empty cache; returns the likeliest next token, or -1 where there is none."""

    def decode(self, token: int) -> None:
        """Append one token and compute the logits after it."""

    def phases(self) -> dict[str, float]:
        """Seconds of the last prefill by kind of work; empty where the engine does not tell."""


class Absent(Exception):  # noqa: N818 - says what is the case, not what went wrong
    """A contestant that cannot take part here, and why, in a sentence for the reader of the results."""


def require_device(torch: Any, device: str) -> None:
    """Raises Absent where this torch cannot compute on `device`."""
    if device == "cuda" and not torch.cuda.is_available():
        raise Absent("this torch has no CUDA: install the build of torch that has")


def make_engine(name: str, settings: Settings) -> Engine:
    """Each engine's library is imported in its own process only."""
    makers: dict[str, Callable[[Settings], Engine]] = {
        "h2o": _h2o,
        "attention": _attention,
        "llama.cpp": _llama_cpp,
        "transformers": _transformers,
        "onnxruntime-genai": _onnxruntime_genai,
        "openvino-genai": _openvino_genai,
    }
    return makers[name](settings)


def _h2o(settings: Settings) -> Engine:
    from h2o_cli.bench.engines.h2o import H2OEngine

    return H2OEngine(settings)


def _attention(settings: Settings) -> Engine:
    from h2o_cli.bench.engines.attention import attention_engine

    return attention_engine(settings)


def _llama_cpp(settings: Settings) -> Engine:
    from h2o_cli.bench.engines.llama_cpp import LlamaCppEngine

    return LlamaCppEngine(settings)


def _transformers(settings: Settings) -> Engine:
    from h2o_cli.bench.engines.transformers import TransformersEngine

    return TransformersEngine(settings)


def _onnxruntime_genai(settings: Settings) -> Engine:
    from h2o_cli.bench.engines.onnxruntime_genai import OnnxRuntimeGenAIEngine

    return OnnxRuntimeGenAIEngine(settings)


def _openvino_genai(settings: Settings) -> Engine:
    from h2o_cli.bench.engines.openvino_genai import OpenVinoGenAIEngine

    return OpenVinoGenAIEngine(settings)
