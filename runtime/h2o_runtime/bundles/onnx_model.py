"""Reads whole ONNX graphs with the package onnx. `graph_file` reads their descriptions without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from h2o_runtime.bundles.manifest import unreadable
from h2o_runtime.errors import BundleError, unimportable


def read_model(path: Path, remedy: str = "reading graphs needs the package onnx: pip install onnx") -> Any:
    """A ModelProto whose weights stay in their files.

    Raises BackendError with `remedy` without the package, BundleError for a broken graph.
    """
    try:
        import onnx
    except ImportError as error:
        raise unimportable(error, remedy) from None
    try:
        return onnx.load(str(path), load_external_data=False)
    except MemoryError:
        raise
    except OSError as error:
        raise unreadable(path, error) from error
    except Exception as error:  # protobuf's decoding errors differ between its implementations
        raise BundleError(
            f"{path}: not a readable ONNX file ({error}); export the checkpoint again"
        ) from error
