"""Choosing a backend by name."""

from __future__ import annotations

from h2o_runtime.backends.base import Backend
from h2o_runtime.bundle import Bundle
from h2o_runtime.errors import ConfigError

BACKENDS = ("onnxruntime",)


def make_backend(name: str, bundle: Bundle, threads: int | None) -> Backend:
    """Raises ConfigError for an unknown name."""
    if name == "onnxruntime":
        from h2o_runtime.backends.onnxruntime import OnnxRuntimeBackend

        return OnnxRuntimeBackend(bundle, threads)
    raise ConfigError(f"backend must be one of {', '.join(BACKENDS)}, but is {name!r}", field="backend")
