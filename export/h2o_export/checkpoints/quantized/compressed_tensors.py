"""Folders in the format of the library compressed-tensors: llm-compressor's int4 and int8."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from h2o_export.checkpoints.quantized.grouped import Grouped, Integers, runs_or_groups, unpack
from h2o_export.checkpoints.quantized.method import Method, Read
from h2o_runtime.errors import CheckpointError, UnsupportedModelError

FORMATS = ("pack-quantized", "int-quantized", "naive-quantized")


class CompressedTensors(Method):
    """weight_packed int32 [N, K * bits / 32] with weight_shape, or weight int8 [N, K]; weight_scale [N, G].

    weight_zero_point has zeros, packed along N beside packed weights; without it they are 0. weight_g_idx [K]
    names groups of act-order. How activations would be rounded is not read: here they stay floats.
    """

    name: ClassVar[str] = "compressed-tensors"

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        groups = settings.get("config_groups") or {}
        if not isinstance(groups, dict) or not all(isinstance(group, dict) for group in groups.values()):
            raise CheckpointError("config.json: config_groups must be an object of objects")
        formats = {settings.get("format"), *(group.get("format") for group in groups.values())} - {None}
        unknown = sorted(
            str(format) for format in formats if format not in (*FORMATS, "mixed-precision", "dense")
        )
        if unknown:
            raise UnsupportedModelError(
                f"compressed-tensors in the format '{unknown[0]}' is not supported; supported formats are "
                f"{', '.join(FORMATS)}"
            )
        for group in groups.values():
            weights = group.get("weights") or {}
            if weights.get("type", "int") != "int":
                raise UnsupportedModelError(
                    f"compressed-tensors weights of type {weights['type']!r} are not supported; only integers are"
                )
        self._group_sizes = {_group_size(group.get("weights") or {}) for group in groups.values()}
        sparse = (settings.get("sparsity_config") or {}).get("format", "dense")
        if sparse != "dense" or settings.get("transform_config"):
            raise UnsupportedModelError(
                "compressed-tensors with sparse weights or with transforms is not supported; only plain integers "
                "are"
            )

    def integers(self, module: str, names: Mapping[str, Any]) -> str | None:
        packed = f"{module}.weight_packed"
        if packed in names:
            return packed
        return f"{module}.weight" if f"{module}.weight_scale" in names else None

    def matrix(self, module: str, names: Mapping[str, Any], read: Read) -> Grouped:
        zeros = read(f"{module}.weight_zero_point") if f"{module}.weight_zero_point" in names else None
        if f"{module}.weight_packed" in names:
            q, zeros = _unpacked(module, read, zeros)
        else:
            stored = read(f"{module}.weight")
            if stored.dtype != np.int8:
                raise UnsupportedModelError(
                    f"weights of {stored.dtype} with scales are not supported; only int8 is"
                )
            q = stored.astype(np.int16)
        scales = _for_each_row(read(f"{module}.weight_scale").astype(np.float32), len(q))
        self._check_groups(q.shape[1], scales.shape[1])
        no_zeros = np.zeros_like(scales, np.int16)
        return Grouped(
            q,
            no_zeros if zeros is None else _for_each_row(zeros.astype(np.int16), len(q)),
            scales,
            _groups(module, names, read, scales.shape[1]),
        )

    def _check_groups(self, columns: int, groups: int) -> None:
        """Raises CheckpointError if no group of config.json has this many scales per row."""
        counts = {1 if size is None else -(-columns // size) for size in self._group_sizes}
        if counts and groups not in counts:
            sizes = sorted(size for size in self._group_sizes if size is not None)
            raise CheckpointError(
                f"{groups} scales for a row of {columns:,} columns, which is not what config.json says (group_size "
                f"{', '.join(map(str, sizes)) or 'none'}); download the checkpoint again"
            )


def _group_size(weights: Mapping[str, Any]) -> int | None:
    """Number of columns that share a scale; None if a row or the matrix has one scale. Raises
    CheckpointError.
    """
    size = weights.get("group_size")
    if size is None or size == -1:
        return None
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise CheckpointError(f"config.json: group_size must be a positive integer or -1, but is {size!r}")
    return size


def _for_each_row(values: NDArray[Any], rows: int) -> NDArray[Any]:
    """[N, G] as it is; a single value, whatever its shape, as [N, 1]."""
    if values.size == 1:
        return np.full((rows, 1), values.item(), values.dtype)
    return values.reshape(rows, -1)


def _groups(module: str, names: Mapping[str, Any], read: Read, count: int) -> NDArray[np.int64] | None:
    """The group index of act-order, if present: otherwise the tensor is missing or -1 throughout."""
    index = read(f"{module}.weight_g_idx") if f"{module}.weight_g_idx" in names else None
    return None if index is None or bool(np.all(index < 0)) else runs_or_groups(index, count)


def _unpacked(module: str, read: Read, zeros: NDArray[Any] | None) -> tuple[Integers, Integers | None]:
    """Packed integers and zeros are stored with half of their range added."""
    words, shape = read(f"{module}.weight_packed"), read(f"{module}.weight_shape")
    rows, columns = (int(size) for size in shape.ravel()[:2])
    bits = next((bits for bits in (4, 8) if words.shape == (rows, -(-columns * bits // 32))), None)
    if bits is None:
        raise UnsupportedModelError(
            f"{module}.weight_packed has the shape {list(words.shape)} for a matrix {[rows, columns]}; "
            "integers of 4 and 8 bits are supported"
        )
    half = np.int16(1 << (bits - 1))
    q = np.ascontiguousarray(unpack(words, bits)[:, :columns]) - half
    return q, None if zeros is None else unpack(zeros.T, bits)[:, :rows].T - half
