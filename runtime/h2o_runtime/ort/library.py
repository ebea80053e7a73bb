"""ONNX Runtime's module, imported only when something runs on it."""

from __future__ import annotations

from typing import Any

from h2o_runtime.errors import BackendError


def import_onnxruntime() -> Any:
    """The module. Raises BackendError that says which of the two packages to install."""
    try:
        import onnxruntime
    except ImportError:
        raise BackendError(
            "ONNX Runtime is not installed: pip install 'h2o-edge[cpu]', or 'h2o-edge[gpu]' on a machine with "
            "an NVIDIA GPU (one of the two, never both)"
        ) from None
    return onnxruntime


def version_of(ort: Any) -> tuple[int, ...]:
    """Major and minor."""
    return tuple(int(number) for number in ort.__version__.split(".")[:2])
