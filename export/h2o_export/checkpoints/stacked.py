"""Folders whose files stack the matrices of all experts, in floats or, with gate and up in turn, in MXFP4."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from h2o_export.checkpoints.checkpoint import Checkpoint
from h2o_export.checkpoints.derived import DerivedCheckpoint
from h2o_export.checkpoints.safetensors import SafetensorsCheckpoint
from h2o_runtime.errors import CheckpointError

EXPERT = re.compile(r"(.+\.experts)\.(\d+)\.(gate|up|down)_proj\.(weight|bias)")
ROUTER, ROUTER_THERE = ".mlp.gate.", ".mlp.router."
# E2M1 (Open Compute Project, "OCP Microscaling Formats (MX) Specification", 2023), by its four bits.
FOUR_BITS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
MXFP4_BLOCK = 32
BIAS = 127  # of a block's scale, a power of two


@dataclass(frozen=True)
class StackedExperts(DerivedCheckpoint):
    """Each expert's matrices as if they were by themselves; see `Arrangement.stacked`."""

    def unused(self, used: Collection[str]) -> frozenset[str]:
        stored = {self._stored(name) for name in used}
        for name in used:
            if place := self._place(name):
                whole = self._whole(place)
                stored |= {whole, f"{whole}_blocks", f"{whole}_scales"}
        return self.original.unused(stored)

    def check(self, tensors: Mapping[str, tuple[int, ...]]) -> None:
        stored: dict[str, tuple[int, ...]] = {}
        for name, shape in tensors.items():
            place = self._place(name)
            stored |= {self._stored(name): shape} if place is None else self._stacked(place, shape)
        self.original.check(stored)

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        place = self._place(name)
        if place is None:
            return self.original.tensor(self._stored(name), shape)
        rows = self._expert(self._whole(place), int(place[2]), place[4] == "bias")
        if place[3] != "down":
            at = ("gate", "up").index(place[3])
            rows = rows[at::2] if self._in_turn else rows.chunk(2)[at]
        if tuple(rows.shape) != shape:
            raise CheckpointError(
                f"{self.source}: expert {place[2]} has {place[3]}_proj.{place[4]} of shape {list(rows.shape)}, but "
                f"config.json implies {list(shape)}"
            )
        return rows.contiguous()

    def _place(self, name: str) -> re.Match[str] | None:
        """None: the files have it by itself, as some have the draft layer's experts, and stack all others."""
        files = self.original
        assert isinstance(files, SafetensorsCheckpoint)
        return None if name in (files.names or files.files) else EXPERT.fullmatch(name)

    @property
    def _in_turn(self) -> bool:
        return self.config.arrangement.stacked == "interleaved"

    def _stored(self, name: str) -> str:
        return name.replace(ROUTER, ROUTER_THERE) if self._in_turn else name

    def _whole(self, place: re.Match[str]) -> str:
        stem = "down_proj" if place[3] == "down" else "gate_up_proj"
        bias = "_bias" if place[4] == "bias" else ""
        return self.config.arrangement.there(f"{place[1]}.{stem}{bias}")

    def _stacked(self, place: re.Match[str], shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """The tensors of the files with this matrix or bias, `shape`, of every expert."""
        files, experts, whole = self.original, self.config.experts, self._whole(place)
        assert isinstance(files, SafetensorsCheckpoint)
        assert experts is not None
        rows = shape[0] * (1 if place[3] == "down" else 2)
        if place[4] == "bias":
            return {whole: (experts.count, rows)}
        if f"{whole}_blocks" in files.files:
            blocks = (experts.count, rows, shape[1] // MXFP4_BLOCK)
            return {f"{whole}_blocks": (*blocks, MXFP4_BLOCK // 2), f"{whole}_scales": blocks}
        matrix = (shape[1], rows) if self._in_turn else (rows, shape[1])
        return {whole: (experts.count, *matrix)}

    def _expert(self, whole: str, expert: int, bias: bool) -> Tensor:
        """Matrices [out, in] or biases [out] of one expert."""
        files = self.original
        assert isinstance(files, SafetensorsCheckpoint)
        if bias:
            return files.read(whole, expert)
        if f"{whole}_blocks" not in files.files:
            matrix = files.read(whole, expert)
            return matrix.T if self._in_turn else matrix
        return from_mxfp4(files.read(f"{whole}_blocks", expert), files.read(f"{whole}_scales", expert))


def from_mxfp4(blocks: Tensor, scales: Tensor) -> Tensor:
    """blocks uint8 [rows, K, 16], the lower bits first, and exponents uint8 [rows, K] → float32 [rows, 32 K]."""
    values = torch.tensor((*FOUR_BITS, *(-value for value in FOUR_BITS)))
    both = torch.stack((blocks & 15, blocks >> 4), dim=-1).flatten(2)  # [rows, K, 32]
    return torch.ldexp(values[both.int()], scales.int().unsqueeze(-1) - BIAS).flatten(1)


def with_single_experts(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint itself, where no tensor of its files holds all experts of a layer."""
    if checkpoint.config.arrangement.stacked is None or not isinstance(checkpoint, SafetensorsCheckpoint):
        return checkpoint
    return StackedExperts(checkpoint.path, checkpoint.source, checkpoint.config, checkpoint)
