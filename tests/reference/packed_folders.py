"""AWQ, GPTQ and compressed-tensors folders made of random checkpoints, packed word by word as their formats say.

Each writer is a plain loop over the published layout, and keeps what the packed tensors stand for in float64.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
Truth = dict[str, NDArray[np.float64]]


class Packer(Protocol):
    def __call__(self, drawn: np.random.Generator, rows: int, columns: int) -> tuple[dict[str, Any], Any]:
        """Tensors by what follows the module's name, and the float64 matrix [rows, columns] that they stand for."""


def write(checkpoint: Path, folder: Path, settings: dict[str, Any], packer: Packer) -> Truth:
    """Copy the checkpoint with the matrices of its layers packed; returns what they stand for, by name."""
    shutil.copytree(checkpoint, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))
    weights, truth = load_file(folder / "model.safetensors"), {}
    drawn = np.random.default_rng(0)
    for name in [name for name in weights if name.endswith("_proj.weight")]:
        rows, columns = weights.pop(name).shape
        tensors, truth[name] = packer(drawn, rows, columns)
        module = name.removesuffix(".weight")
        weights |= {f"{module}.{key}": torch.as_tensor(value) for key, value in tensors.items()}
    save_file({key: value.contiguous() for key, value in weights.items()}, folder / "model.safetensors")
    return truth


def _words(values: NDArray[Any], bits: int, order: tuple[int, ...] | None = None) -> NDArray[np.int32]:
    """Integers [R, C] from 0 as words [R, C * bits / 32]; field i of a word has its value order[i]."""
    count = 32 // bits
    rows, columns = values.shape
    words = np.zeros((rows, -(-columns // count)), np.uint32)
    for column in range(columns):
        field = column % count if order is None else order.index(column % count)
        words[:, column // count] |= values[:, column].astype(np.uint32) << np.uint32(bits * field)
    return words.view(np.int32)


def _scales(drawn: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float16]:
    return (drawn.uniform(0.5, 2, shape) / 100).astype(np.float16)


@dataclass(frozen=True)
class AWQ:
    group: int = 32
    symmetric: bool = False

    def __call__(self, drawn: np.random.Generator, rows: int, columns: int) -> tuple[dict[str, Any], Any]:
        groups = columns // self.group
        q = drawn.integers(0, 16, (columns, rows))
        zeros = np.full((groups, rows), 8) if self.symmetric else drawn.integers(0, 16, (groups, rows))
        scales = _scales(drawn, (groups, rows))
        of = np.arange(columns) // self.group
        truth = (q - zeros[of]) * scales[of].astype(np.float64)
        tensors = {
            "qweight": _words(q, 4, AWQ_ORDER),
            "qzeros": _words(zeros, 4, AWQ_ORDER),
            "scales": scales,
        }
        return tensors, truth.T


@dataclass(frozen=True)
class GPTQ:
    bits: int = 4
    group: int = 32
    symmetric: bool = True
    act_order: bool = False
    stored_less_one: bool = True  # as the first version of the format has it
    with_index: bool = True

    def __call__(self, drawn: np.random.Generator, rows: int, columns: int) -> tuple[dict[str, Any], Any]:
        groups, top = columns // self.group, 1 << self.bits
        q = drawn.integers(0, top, (columns, rows))
        zeros = drawn.integers(1, top, (groups, rows))
        if self.symmetric:
            zeros = np.full((groups, rows), top // 2)
        scales = _scales(drawn, (groups, rows))
        of = np.arange(columns) // self.group
        if self.act_order:
            of = drawn.permutation(of)
        truth = (q - zeros[of]) * scales[of].astype(np.float64)
        tensors = {
            "qweight": np.ascontiguousarray(_words(q.T, self.bits).T),
            "qzeros": _words(zeros - int(self.stored_less_one), self.bits),
            "scales": scales,
        }
        return (tensors | {"g_idx": of.astype(np.int32)} if self.with_index else tensors), truth.T


@dataclass(frozen=True)
class Compressed:
    """`group` 0: a scale a row; -1: one for the matrix."""

    bits: int = 4
    group: int = 32
    packed: bool = True
    symmetric: bool = True
    act_order: bool = False

    def __call__(self, drawn: np.random.Generator, rows: int, columns: int) -> tuple[dict[str, Any], Any]:
        half, groups = 1 << (self.bits - 1), columns // self.group if self.group > 0 else 1
        q = drawn.integers(-half, half, (rows, columns))
        zeros = np.zeros((rows, groups), np.int64)
        if not self.symmetric:
            zeros = drawn.integers(-half, half, (rows, groups))
        scales = torch.from_numpy(_scales(drawn, (rows, groups)).astype(np.float32)).bfloat16()
        if self.group < 0:
            scales = scales[:1, :1].expand(rows, 1)
        of = np.arange(columns) // (columns // groups)
        if self.act_order:
            of = drawn.permutation(of)
        truth = (q - zeros[:, of]) * scales.double().numpy()[:, of]
        tensors: dict[str, Any] = {"weight_scale": scales[0, :1].clone() if self.group < 0 else scales}
        if self.packed:
            tensors["weight_packed"] = _words(q + half, self.bits)
            tensors["weight_shape"] = np.array([rows, columns])
        else:
            tensors["weight"] = q.astype(np.int8)
        if not self.symmetric:
            stored = np.ascontiguousarray(_words((zeros + half).T, self.bits).T)
            tensors["weight_zero_point"] = stored if self.packed else zeros.astype(np.int8)
        if self.act_order:
            tensors["weight_g_idx"] = of.astype(np.int32)
        return tensors, truth
