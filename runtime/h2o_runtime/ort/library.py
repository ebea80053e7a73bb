"""ONNX Runtime's module, imported only when something runs on it."""

from __future__ import annotations

from typing import Any

from h2o_runtime.errors import BackendError, unimportable


def import_onnxruntime() -> Any:
    """The module. Raises BackendError that says which of the two packages to install, or why it does not load."""
    try:
        import onnxruntime
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and error.name in (None, "onnxruntime"):
            raise BackendError(
                "ONNX Runtime is not installed: pip install 'h2o-edge[cpu]', or 'h2o-edge[gpu]' on a machine with "
                "an NVIDIA GPU (one of the two, never both)"
            ) from None
        raise unimportable(error, f"ONNX Runtime is installed, but cannot be loaded: {error}") from error
    return onnxruntime


def version_of(ort: Any) -> tuple[int, ...]:
    """Major and minor."""
    return tuple(int(number) for number in ort.__version__.split(".")[:2])
