"""Reads ONNX graphs with the package onnx, which every extra brings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from h2o_runtime.bundles.manifest import unreadable
from h2o_runtime.errors import BundleError, unimportable

WITHOUT_ONNX = (
    "reading graphs needs the package onnx: pip install 'h2o-edge[cpu]' or 'h2o-edge[gpu]' brings it"
)
_ELEMENTS = {1: "float32", 6: "int32", 7: "int64", 10: "float16"}

Interface = dict[str, tuple[str, tuple[int | str, ...]]]  # name → dtype and shape


@dataclass(frozen=True)
class GraphFile:
    """external  file names of its weights, relative to its own folder"""

    name: str
    opsets: dict[str, int]
    inputs: Interface
    outputs: Interface
    external: frozenset[str]

    @classmethod
    def read(cls, path: Path) -> GraphFile:
        """Raises what `read_model` raises."""
        model = read_model(path)
        return cls(
            name=model.graph.name,
            opsets={opset.domain: opset.version for opset in model.opset_import},
            inputs=dict(map(_value, model.graph.input)),
            outputs=dict(map(_value, model.graph.output)),
            external=frozenset(
                entry.value
                for tensor in model.graph.initializer
                for entry in tensor.external_data
                if entry.key == "location"
            ),
        )


def read_model(path: Path) -> Any:
    """A ModelProto whose weights stay in their files.

    Raises BackendError without the package, BundleError for a broken graph.
    """
    try:
        import onnx
    except ImportError as error:
        raise unimportable(error, WITHOUT_ONNX) from None
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


def _value(value: Any) -> tuple[str, tuple[str, tuple[int | str, ...]]]:
    tensor = value.type.tensor_type
    shape = tuple(dim.dim_param or dim.dim_value for dim in tensor.shape.dim)
    return value.name, (_ELEMENTS.get(tensor.elem_type, "?"), shape)
