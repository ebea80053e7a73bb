"""Packed weights in files that processes map: a later start packs nothing, and all processes share their memory.

Each graph has one file in the format of safetensors: 8 bytes that tell the header's length, the header as JSON, the
arrays. All processors read the same layout. A file that does not fit is written anew: one of another graph, of
another packing, of another length, or without an array that the graph needs. What the arrays hold is compared with
its hash only on request, as the bundle's own files are.
"""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError

from h2o_runtime.bundles.manifest import GraphSpec, Manifest
from h2o_runtime.dense_graphs.native import multiply_natively
from h2o_runtime.dense_graphs.packed import LINE, PANEL, Kind, Pack, Packed, Product, name_of, pack_matrices
from h2o_runtime.dense_graphs.packed_nodes import Arrays
from h2o_runtime.errors import InputError, OutputError
from h2o_runtime.files.inputs import open_input
from h2o_runtime.files.outputs import check_outside_bundles, replaced
from h2o_runtime.layer_spec import Strict
from h2o_runtime.names import DensePrecision

log = logging.getLogger(__name__)

PACKING = 1  # the layout of h2o/products.h and of the arrays around it: another one has another number
SUFFIX = ".safetensors"
HEAD = "lm_head."  # what the exporter's names of its weights begin with
MOST_HEADER = 16 << 20  # bytes
ABOUT = "__metadata__"
DTYPES: dict[str, np.dtype[Any]] = {"U8": np.dtype(np.uint8), "F32": np.dtype(np.float32)}


class UnfitError(ValueError):
    """Why a file is of no use."""


class _Entry(Strict):
    """An array of one dimension: where its bytes begin and end, counted from the end of the header."""

    dtype: str
    shape: tuple[int]
    data_offsets: tuple[int, int]


class _About(Strict):
    """of: what was packed, as `PackedFolder.key` has it. data: SHA-256 of all arrays."""

    of: str
    data: str = Field(pattern="^[0-9a-f]{64}$")


_ENTRIES = TypeAdapter(dict[str, _Entry])


@dataclass(frozen=True)
class PackedFolder:
    """verify  whether the content of each file is compared with its hash before it is used
    unkept  graphs whose files could not be written
    """

    folder: Path
    verify: bool = False
    unkept: list[str] = field(default_factory=list, compare=False)

    @classmethod
    def open(cls, folder: Path, verify: bool = False) -> PackedFolder:
        """Raises OutputError for a folder that cannot be made, or that is inside a bundle."""
        check_outside_bundles(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"{folder}: not a folder for packed weights: {error.strerror}") from error
        return cls(folder, verify)

    def multiply_natively(
        self,
        model: Any,
        path: Path,
        threads: int,
        graph: GraphSpec,
        manifest: Manifest,
        precision: DensePrecision = "float32",
    ) -> tuple[Any, Arrays]:
        """As the function of this name, with arrays that are mapped from the graph's file.

        The file is written where there is none that fits. If it cannot be written, arrays are in this process's own
        memory; one warning says so for all graphs.
        """
        key, file = self.key(graph, manifest, precision), self.file(graph, manifest, precision)
        if file.exists():
            try:
                pack = PackedFile.read(file, key, self.verify).pack
                return multiply_natively(model, path, threads, pack, precision)
            except (InputError, UnfitError) as error:
                log.warning("%s: not used, and written again: %s", file, error)
        rewritten, arrays = multiply_natively(model, path, threads, precision=precision)
        try:
            write(file, key, arrays)
            log.info("%s: written", file)
            return rewritten, PackedFile.read(file, key).arrays
        except (OutputError, InputError, UnfitError) as error:
            level = logging.DEBUG if self.unkept else logging.WARNING
            log.log(level, "packed weights are not kept where a file cannot be written: %s", error)
            self.unkept.append(path.stem)
            return rewritten, arrays

    def file(self, graph: GraphSpec, manifest: Manifest, precision: DensePrecision = "float32") -> Path:
        """Where a graph's packed weights are, or would be."""
        return self.folder / f"{graph.name}-{self.key(graph, manifest, precision)[:16]}{SUFFIX}"

    @staticmethod
    def key(graph: GraphSpec, manifest: Manifest, precision: DensePrecision = "float32") -> str:
        """SHA-256 of what a graph's packed weights depend on: the graph, its weights and the packing."""
        files = [manifest.files[name].sha256 for name in (graph.file, *graph.weights)]
        return hashlib.sha256(json.dumps([PACKING, precision, *files]).encode()).hexdigest()


@dataclass(frozen=True)
class PackedFile:
    """The arrays of a graph's nodes, mapped and not writable."""

    arrays: Mapping[str, NDArray[Any]]

    @classmethod
    def read(cls, path: Path, key: str, verify: bool = False) -> PackedFile:
        """Raises InputError for a file that cannot be read, UnfitError for one that is not what `key` says."""
        try:
            with open_input(path) as file:
                data = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
            start = 8 + int(data[:8].view("<u8")[0])
            if not 8 < start <= min(len(data), MOST_HEADER) or start % LINE:
                raise ValueError("a header of another length")
            header = json.loads(data[8:start].tobytes())
            about = _About.model_validate(header.pop(ABOUT))
            entries = _ENTRIES.validate_python(header)
        except OSError as error:
            raise InputError(f"it cannot be read: {error.strerror}") from error
        except (ValidationError, ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
            raise UnfitError("it is damaged, or no file of packed weights") from error
        if about.of != key:
            raise UnfitError("it is of another bundle or version")
        body = data[start:]
        arrays = dict(_arrays(body, entries))
        if verify and hashlib.sha256(body.data).hexdigest() != about.data:
            raise UnfitError("its content is not what was written")
        return cls(arrays)

    def pack(self, matrices: Sequence[Product], tensors: Mapping[str, Any], folder: Path) -> Packed:
        """As `pack_matrices`, of what was packed before. Raises UnfitError where that has other sizes."""
        sizes = [_sizes(matrix, tensors) for matrix in matrices]
        inputs, name, expected = sizes[0][0], name_of(matrices), _expected(sizes, Kind.of(matrices[0]))
        found = {key: self.arrays[f"{name}/{key}"] for key in expected if f"{name}/{key}" in self.arrays}
        if {key: array.nbytes for key, array in found.items()} != expected:
            raise UnfitError(f"it has other weights than {name}")
        scales, offsets = found.get("scales"), found.get("offsets")
        return Packed(inputs, tuple(outputs for _, outputs in sizes), found["weights"], scales, offsets)


def sharing_head(packed: Arrays, tokens: int) -> Pack:
    """Packs the matrices of a graph whose head is the model's, as these arrays have it, of the first tokens alone.

    tokens: a multiple of PANEL, or the whole vocabulary
    """

    def pack(matrices: Sequence[Product], tensors: Mapping[str, Any], folder: Path) -> Packed:
        name = name_of(matrices)
        if not name.startswith(HEAD):
            return pack_matrices(matrices, tensors, folder)
        inputs = _sizes(matrices[0], tensors)[0]
        expected = _expected([(inputs, tokens)], Kind.of(matrices[0]))
        cut: dict[str, Any] = {
            key: (whole := packed[f"{name}/{key}"])[: nbytes // whole.itemsize]
            for key, nbytes in expected.items()
        }
        return Packed(inputs, (tokens,), cut["weights"], cut.get("scales"), cut.get("offsets"))

    return pack


def write(path: Path, key: str, arrays: Arrays) -> None:
    """Write the file as a whole. Raises OutputError."""
    entries, end, digest = {}, 0, hashlib.sha256()
    for name, array in arrays.items():
        (dtype,) = (known for known, of in DTYPES.items() if of == array.dtype)
        entries[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": (end, end + array.nbytes)}
        end += array.nbytes
        digest.update(array.data)
    about = {"of": key, "data": digest.hexdigest()}
    header = json.dumps({ABOUT: about, **entries}).encode()
    header += b" " * (-(8 + len(header)) % LINE)  # every array begins at a line, for all take whole ones
    with replaced(path) as partial, partial.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for array in arrays.values():
            file.write(array.data)
        file.flush()
        with suppress(OSError):  # a file system that cannot
            os.fsync(file.fileno())


def _arrays(body: NDArray[np.uint8], entries: Mapping[str, _Entry]) -> Iterator[tuple[str, NDArray[Any]]]:
    """Arrays by name. Raises UnfitError unless they lie one behind the other, from the first byte to the last."""
    end = 0
    for name, entry in entries.items():
        start, stop = entry.data_offsets
        dtype = DTYPES.get(entry.dtype)
        if dtype is None or start != end or stop <= start or stop - start != entry.shape[0] * dtype.itemsize:
            raise UnfitError(f"its table is damaged at {name}")
        if stop > len(body):
            raise UnfitError("it is cut off")
        yield name, body[start:stop].view(dtype)
        end = stop
    if end != len(body):
        raise UnfitError("it is longer than its table says")


def _expected(sizes: Sequence[tuple[int, int]], kind: Kind) -> dict[str, int]:
    """Bytes of each array of matrices together. sizes: K and N of each."""
    inputs = sizes[0][0]
    columns = sum(-(-outputs // PANEL) * PANEL for _, outputs in sizes)
    blocks = columns * inputs // kind.block if kind.block else 0
    expected = {"weights": columns * inputs * kind.bits // 8}
    expected |= {"scales": 4 * blocks} if blocks else {}
    return expected | ({"offsets": 4 * blocks} if kind.offsets else {})


def _sizes(product: Product, tensors: Mapping[str, Any]) -> tuple[int, int]:
    """K and N of a matrix."""
    first, second = tensors[product.weight].dims
    return (first, second) if not getattr(product, "transposed", True) else (second, first)
