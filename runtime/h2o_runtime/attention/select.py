"""Choosing an attention provider by name."""

from __future__ import annotations

from h2o_plugins import cpu_kernels
from h2o_runtime.attention.base import AttentionProvider
from h2o_runtime.bundle import Bundle
from h2o_runtime.errors import ConfigError

PROVIDERS = ("auto", "native", "functions")


def make_provider(name: str, bundle: Bundle, threads: int | None) -> AttentionProvider:
    """ "auto" takes the native kernels where they are built, else the ONNX function bodies."""
    if name not in PROVIDERS:
        raise ConfigError(
            f"attention must be one of {', '.join(PROVIDERS)}, but is {name!r}", field="attention"
        )
    if name == "native" or (name == "auto" and cpu_kernels() is not None):
        from h2o_runtime.attention.native import NativeCpuProvider

        return NativeCpuProvider(threads)
    from h2o_runtime.attention.functions import FunctionProvider

    return FunctionProvider(bundle, threads)
