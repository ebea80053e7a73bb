"""Reads the description of an ONNX file without the package onnx, which not every device has.

Only the outermost messages of the protocol buffer are read; nodes are skipped, and weights are in other
files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from h2o_runtime.errors import BundleError

# Field numbers of onnx.proto
_MODEL_GRAPH, _MODEL_OPSET = 7, 8
_OPSET_DOMAIN, _OPSET_VERSION = 1, 2
_GRAPH_NAME, _GRAPH_INITIALIZER, _GRAPH_INPUT, _GRAPH_OUTPUT = 2, 5, 11, 12
_TENSOR_EXTERNAL = 13
_ENTRY_KEY, _ENTRY_VALUE = 1, 2
_VALUE_NAME, _VALUE_TYPE = 1, 2
_TYPE_TENSOR, _TENSOR_ELEMENT, _TENSOR_SHAPE = 1, 1, 2
_SHAPE_DIM, _DIM_VALUE, _DIM_PARAM = 1, 1, 2

_ELEMENTS = {1: "float32", 6: "int32", 7: "int64", 10: "float16"}

Field = tuple[int, "int | memoryview"]
Interface = dict[str, tuple[str, tuple[int | str, ...]]]  # name → dtype and shape


@dataclass(frozen=True)
class GraphFile:
    """file names of its weights, relative to its own folder"""

    name: str
    opsets: dict[str, int]
    inputs: Interface
    outputs: Interface
    external: frozenset[str]

    @classmethod
    def read(cls, path: Path) -> GraphFile:
        """Raises BundleError if `path` is not an ONNX file."""
        try:
            model = list(_fields(memoryview(path.read_bytes())))
            graph = list(_fields(_bytes(_last(model, _MODEL_GRAPH))))
            return cls(
                name=_text(_last(graph, _GRAPH_NAME)),
                opsets=dict(map(_opset, _all(model, _MODEL_OPSET))),
                inputs=dict(map(_value, _all(graph, _GRAPH_INPUT))),
                outputs=dict(map(_value, _all(graph, _GRAPH_OUTPUT))),
                external=frozenset(
                    name for tensor in _all(graph, _GRAPH_INITIALIZER) for name in _external(tensor)
                ),
            )
        except OSError as error:
            raise BundleError(f"{path}: cannot be read: {error.strerror}") from error
        except (ValueError, IndexError, TypeError) as error:
            raise BundleError(
                f"{path}: not a readable ONNX file ({error}); export the checkpoint again"
            ) from error


def _fields(data: memoryview) -> Iterator[Field]:
    """Number and content of every field of a message. Raises ValueError or IndexError if it is not a
    message.
    """
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            number, at = _varint(data, at)
            yield key >> 3, number
            continue
        size = {1: 8, 5: 4}.get(kind)
        if kind == 2:
            size, at = _varint(data, at)
        if size is None or at + size > len(data):
            raise ValueError("it is damaged or cut off")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """A number, and the offset of the next field."""
    value = shift = 0
    while shift < 64:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise ValueError("it is damaged")


def _all(fields: list[Field], number: int) -> list[memoryview]:
    return [_bytes(content) for found, content in fields if found == number]


def _last(fields: list[Field], number: int, default: int | bytes = b"") -> int | memoryview | bytes:
    """The content of a field that occurs once; in protocol buffers the last occurrence counts."""
    return next((content for found, content in reversed(fields) if found == number), default)


def _bytes(content: int | memoryview | bytes) -> memoryview:
    return memoryview(content)  # type: ignore[arg-type]  # a TypeError for numbers is what is wanted


def _text(content: int | memoryview | bytes) -> str:
    return bytes(_bytes(content)).decode("utf-8")


def _opset(data: memoryview) -> tuple[str, int]:
    fields = list(_fields(data))
    return _text(_last(fields, _OPSET_DOMAIN)), _number(_last(fields, _OPSET_VERSION, 0))


def _number(content: int | memoryview | bytes) -> int:
    if not isinstance(content, int):
        raise ValueError("it is damaged")
    return content


def _external(tensor: memoryview) -> Iterator[str]:
    for entry in _all(list(_fields(tensor)), _TENSOR_EXTERNAL):
        fields = list(_fields(entry))
        if _text(_last(fields, _ENTRY_KEY)) == "location":
            yield _text(_last(fields, _ENTRY_VALUE))


def _value(data: memoryview) -> tuple[str, tuple[str, tuple[int | str, ...]]]:
    fields = list(_fields(data))
    tensor = list(_fields(_bytes(_last(list(_fields(_bytes(_last(fields, _VALUE_TYPE)))), _TYPE_TENSOR))))
    dims = _all(list(_fields(_bytes(_last(tensor, _TENSOR_SHAPE)))), _SHAPE_DIM)
    element = _number(_last(tensor, _TENSOR_ELEMENT, 0))
    return _text(_last(fields, _VALUE_NAME)), (_ELEMENTS.get(element, "?"), tuple(map(_size, dims)))


def _size(dim: memoryview) -> int | str:
    fields = list(_fields(dim))
    value = _last(fields, _DIM_VALUE)
    return value if isinstance(value, int) else _text(_last(fields, _DIM_PARAM))
