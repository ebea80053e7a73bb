"""Activation-aware scaling (SmoothQuant, Xiao et al., 2023): moves the magnitude of a few large activation
channels into the weights that read them.

If a row has one scale, a channel far larger than the rest costs all others precision. Dividing it in the norm
before, and multiplying the columns of the matrices after, computes the same model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from h2o_export.architecture.config import ModelConfig
from h2o_export.checkpoints import Checkpoint
from h2o_export.checkpoints.derived import DerivedCheckpoint
from h2o_export.dense.graphs import checkpoint_tensors
from h2o_export.reference.streamed_model import StreamedModel
from h2o_export.tensors import QuantizedTensor

FILE = "calibration.safetensors"  # in a bundle: factors by the tensor that is divided by them
TEXTS = 2  # of calibration.text
STRENGTH = 0.5  # exponent of the activations; from the table in docs/weights.md
SMALLEST = 1e-5


def scaled_pairs(config: ModelConfig) -> Iterator[tuple[str, tuple[str, ...]]]:
    """In a layer: the module whose outputs are divided, and the matrices that read them, if the layer has them."""
    if config.norms.before_attention is not None:
        attention = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        yield config.norms.before_attention, (*attention, "conv.in_proj")
    if config.norms.before_mlp is not None:
        yield config.norms.before_mlp, ("mlp.gate_proj", "mlp.up_proj")
    if config.activation != "relu2":  # a square has the square of a factor
        yield "mlp.up_proj", ("mlp.down_proj",)


@dataclass(frozen=True)
class ScaledCheckpoint(DerivedCheckpoint):
    """The same model as `original` with its channels scaled.

    divided     factors float32 [out] by the names of tensors whose rows are divided by them
    multiplied  factors float32 [in] by the names of matrices whose columns are multiplied
    """

    divided: dict[str, Tensor]
    multiplied: dict[str, Tensor]

    @classmethod
    def of(cls, original: Checkpoint, factors: dict[str, Tensor]) -> ScaledCheckpoint:
        """`factors` as `scaling_factors` gives them."""
        multiplied: dict[str, Tensor] = {}
        for layer in range(original.config.layers):
            for source, readers in scaled_pairs(original.config):
                factor = factors[_name(layer, source)]
                multiplied |= {_name(layer, reader): factor for reader in readers}
        return cls(original.path, original.source, original.config, original, dict(factors), multiplied)

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        tensor = self.original.tensor(name, shape)
        if name in self.multiplied:
            tensor = tensor.float() * self.multiplied[name]
        by = self.divided.get(name.replace(".bias", ".weight"))
        if by is not None:
            tensor = tensor.float() / (by[:, None] if tensor.ndim == 2 else by)
        return tensor

    def blocks(self, name: str) -> QuantizedTensor | None:
        scaled = name in self.multiplied or name in self.divided
        return None if scaled else self.original.blocks(name)


def scaling_factors(checkpoint: Checkpoint, texts: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    """Factors float32 by the names of the tensors that are divided by them; `texts` are token ids."""
    largest: dict[str, Tensor] = {}

    def watch(name: str, x: Tensor) -> None:
        sizes = x.reshape(-1, x.shape[-1]).abs().amax(0)
        largest[name] = torch.maximum(largest[name], sizes) if name in largest else sizes

    model = StreamedModel(checkpoint, torch.float32)
    model.watch(watch)
    states = model.embed(texts)
    for layer in range(checkpoint.config.layers):
        states = model.layer(layer, states)
    shapes = checkpoint_tensors(checkpoint.plan)
    factors = {}
    for layer in range(checkpoint.config.layers):
        for source, readers in scaled_pairs(checkpoint.config):
            names = [name for reader in readers if (name := _name(layer, reader)) in shapes]
            columns = [checkpoint.tensor(name, shapes[name]).float().abs().amax(0) for name in names]
            weights = torch.stack(columns).amax(0).clamp(min=SMALLEST)
            activations = largest[names[0]].clamp(min=SMALLEST)
            factor = activations**STRENGTH / weights ** (1 - STRENGTH)
            factors[_name(layer, source)] = factor / factor.log().mean().exp()
    return factors


def save_factors(factors: dict[str, Tensor], folder: Path) -> None:
    save_file(factors, folder / FILE)


def _name(layer: int, module: str) -> str:
    return f"model.layers.{layer}.{module}.weight"
