"""The header of a GGUF file: its metadata, and the places of its tensors.

The package `gguf` has a reader too, but it trusts every length in the file: a damaged file keeps it busy
until memory runs out. Here each length is compared with the file before use. An array of strings is read at
once, because a tokenizer has 100,000 and more.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from gguf import GGML_QUANT_SIZES, GGUF_DEFAULT_ALIGNMENT, GGUF_MAGIC, GGMLQuantizationType, GGUFValueType

from h2o_runtime.errors import CheckpointError, UnsupportedModelError

VERSIONS = (2, 3)
MAX_DIMENSIONS = 4
_SCALARS = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}


@dataclass(frozen=True)
class TensorEntry:
    """One tensor, or a part of one. `shape` is in transformers' order, rows first; the other sizes are in bytes.

    step  from one row to the next; 0: rows follow each other
    """

    path: Path
    name: str
    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int
    length: int
    step: int = 0

    def rows(self, index: int, count: int) -> TensorEntry:
        """One of `count` parts of as many rows each. Raises CheckpointError if there are none such."""
        size, left = divmod(self.shape[0], count) if self.shape else (0, 1)
        if left:
            raise CheckpointError(
                f"{self.path}: '{self.name}' has the shape {list(self.shape)}, whose rows cannot be divided into "
                f"{count} equal groups; download it again"
            )
        length = self.length // count
        shape = (size, *self.shape[1:])
        return replace(self, shape=shape, offset=self.offset + index * length, length=length)

    def columns(self, index: int, count: int) -> TensorEntry:
        """The same of a matrix's columns, which must be whole blocks of its type. Raises UnsupportedModelError."""
        block, size = GGML_QUANT_SIZES[self.kind]
        blocks, left = divmod(self.shape[1], count * block)
        if left:
            raise UnsupportedModelError(
                f"{self.path}: '{self.name}' has {self.shape[1]} columns for {count} layers, and the columns of "
                f"one layer are not whole blocks of {self.kind.name}"
            )
        length = blocks * size
        return replace(
            self,
            shape=(self.shape[0], blocks * block),
            offset=self.offset + index * length,
            length=self.shape[0] * length,
            step=count * length,
        )


@dataclass(frozen=True)
class Header:
    """`metadata` has numbers, booleans, strings, and lists of these."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, TensorEntry]


@dataclass(frozen=True)
class Metadata:
    """What a file says of its model, by keys after the architecture's name; None: nothing."""

    header: Header
    name: str

    def __call__(self, key: str) -> Any:
        return self.header.metadata.get(f"{self.name}.{key}")

    def number(self, key: str) -> int:
        """A whole number that is not negative; 0 where the file says nothing. Raises CheckpointError."""
        found = self(key)
        if found is None:
            return 0
        if not isinstance(found, int) or isinstance(found, bool) or found < 0:
            raise CheckpointError(
                f"{self.header.path}: {self.name}.{key} must be a whole number that is not negative, not "
                f"{found!r}; download it again"
            )
        return found


def read_header(path: Path) -> Header:
    """Raises CheckpointError for a truncated or damaged file, UnsupportedModelError for another version or
    type.
    """
    try:
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(path, data).header()
    except (OSError, ValueError) as error:  # ValueError: mmap of an empty file
        raise CheckpointError(f"{path}: cannot be read: {error}; download it again") from error


class _Reader:
    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._at = 0

    def header(self) -> Header:
        if self._data[:4] != struct.pack("<I", GGUF_MAGIC):
            raise CheckpointError(f"{self._path}: not a GGUF file: it does not begin with the letters GGUF")
        self._at = 4
        version = self._number("I")
        if version & 0xFFFF == 0:
            raise UnsupportedModelError(f"{self._path}: a big-endian GGUF file; convert it to little-endian")
        if version not in VERSIONS:
            raise UnsupportedModelError(
                f"{self._path}: GGUF version {version} is not supported; supported are versions 2 and 3"
            )
        tensors, entries = self._number("Q"), self._number("Q")
        metadata: dict[str, Any] = {}
        for _ in range(entries):
            key = self._text()
            if key in metadata:
                self._damaged(f"the key {key!r} comes twice")
            metadata[key] = self._value(key, self._number("I"))
        stored = [self._tensor() for _ in range(tensors)]
        return Header(self._path, metadata, self._placed(stored, metadata))

    def _placed(self, stored: list[TensorEntry], metadata: dict[str, Any]) -> dict[str, TensorEntry]:
        """Tensors by name, with offsets from the beginning of the file instead of the data."""
        alignment = metadata.get("general.alignment", GGUF_DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            self._damaged(f"its alignment is {alignment!r}, which is no power of two")
        begin = -(-self._at // alignment) * alignment
        placed: dict[str, TensorEntry] = {}
        for tensor in stored:
            offset = begin + tensor.offset
            if tensor.name in placed:
                self._damaged(f"the tensor {tensor.name!r} comes twice")
            if offset + tensor.length > len(self._data):
                raise CheckpointError(
                    f"{self._path}: ends before its tensor {tensor.name!r} does, which takes "
                    f"{offset + tensor.length:,} of {len(self._data):,} bytes; download it again"
                )
            placed[tensor.name] = TensorEntry(
                self._path, tensor.name, tensor.kind, tensor.shape, offset, tensor.length
            )
        for before, after in pairwise(sorted(placed.values(), key=lambda tensor: tensor.offset)):
            if before.offset + before.length > after.offset:
                self._damaged(f"the tensors {before.name!r} and {after.name!r} overlap")
        return placed

    def _tensor(self) -> TensorEntry:
        name = self._text()
        dimensions = self._number("I")
        if dimensions > MAX_DIMENSIONS:
            self._damaged(f"the tensor {name!r} has {dimensions} dimensions")
        shape = tuple(reversed(self._numbers("Q", dimensions)))
        if 0 in shape:
            self._damaged(f"the tensor {name!r} has a dimension of 0")
        kind, offset = self._number("I"), self._number("Q")
        try:
            kind = GGMLQuantizationType(kind)
        except ValueError:
            raise UnsupportedModelError(
                f"{self._path}: the tensor {name!r} has the type {kind}, which the package gguf does not know; "
                "install a newer gguf, or the file is damaged"
            ) from None
        block, size = GGML_QUANT_SIZES[kind]
        columns = shape[-1] if shape else 1
        if columns % block:
            self._damaged(f"the rows of {name!r} have {columns:,} elements, which {kind.name} cannot have")
        return TensorEntry(self._path, name, kind, shape, offset, math.prod(shape) // block * size)

    def _value(self, key: str, kind: int) -> Any:
        if kind == GGUFValueType.STRING:
            return self._text()
        if kind != GGUFValueType.ARRAY:
            return self._number(self._code(key, kind))
        kind, count = self._number("I"), self._number("Q")
        if kind != GGUFValueType.STRING:
            return list(self._numbers(self._code(key, kind), count))
        self._room(8 * count)  # the minimum size of this many strings
        return [self._text() for _ in range(count)]

    def _code(self, key: str, kind: int) -> str:
        try:
            return _SCALARS[GGUFValueType(kind)]
        except (KeyError, ValueError):
            self._damaged(f"the value of {key!r} has the unknown type {kind}")

    def _text(self) -> str:
        length = self._number("Q")
        self._room(length)
        raw = self._data[self._at : self._at + length]
        self._at += length
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            self._damaged(f"the text at byte {self._at - length:,} is not UTF-8")

    def _number(self, code: str) -> Any:
        return self._numbers(code, 1)[0]

    def _numbers(self, code: str, count: int) -> tuple[Any, ...]:
        size = count * struct.calcsize(f"<{code}")
        self._room(size)
        values = struct.unpack_from(f"<{count}{code}", self._data, self._at)
        self._at += size
        return values

    def _room(self, size: int) -> None:
        if size > len(self._data) - self._at:
            self._damaged(f"at byte {self._at:,} it promises more than the file has")

    def _damaged(self, what: str) -> NoReturn:
        raise CheckpointError(f"{self._path}: not a whole GGUF file: {what}; download it again")
