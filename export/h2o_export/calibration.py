"""Activation-aware scaling (SmoothQuant, Xiao et al., 2023): what a few channels of the activations have too much
of moves into the weights that read them.

A channel that is far larger than the rest of its row takes the precision of all others where a row has one scale.
Dividing it in the norm before, and multiplying the columns of the matrices behind, computes the same model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from h2o_export.checkpoints import Checkpoint
from h2o_export.dense import checkpoint_tensors
from h2o_export.reference import StreamedModel

FILE = "calibration.safetensors"  # in a bundle: the factors by the tensor that is divided by them
TOKENS = 1024
STRENGTH = 0.5  # of the activations' share; by the table in docs/weights.md
SMALLEST = 1e-5
# In a layer: whose outputs are divided, and the matrices that read them.
PAIRS = (
    ("input_layernorm", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
    ("post_attention_layernorm", ("mlp.gate_proj", "mlp.up_proj")),
    ("mlp.up_proj", ("mlp.down_proj",)),
)


@dataclass(frozen=True)
class ScaledCheckpoint(Checkpoint):
    """The same model as `original` with its channels scaled.

    divided     factors float32 [out] by the names of tensors whose rows are divided by them
    multiplied  factors float32 [in] by the names of matrices whose columns are multiplied
    """

    original: Checkpoint
    divided: dict[str, Tensor]
    multiplied: dict[str, Tensor]

    @classmethod
    def of(cls, original: Checkpoint, factors: dict[str, Tensor]) -> ScaledCheckpoint:
        """`factors` as `calibrate` gives them."""
        multiplied: dict[str, Tensor] = {}
        for layer in range(original.config.layers):
            for source, readers in PAIRS:
                made = factors[_name(layer, source)]
                multiplied |= {_name(layer, reader): made for reader in readers}
        return cls(original.path, original.source, original.config, original, dict(factors), multiplied)

    @classmethod
    def takes(cls, path: Path) -> bool:
        return False

    @classmethod
    def open(cls, path: Path, source: str) -> ScaledCheckpoint:
        raise NotImplementedError("a scaled checkpoint is made of another one")

    @property
    def config_file(self) -> Path:
        return self.original.config_file

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        tensor = self.original.tensor(name, shape)
        if name in self.multiplied:
            tensor = tensor.float() * self.multiplied[name]
        by = self.divided.get(name.replace(".bias", ".weight"))
        if by is not None:
            tensor = tensor.float() / (by[:, None] if tensor.ndim == 2 else by)
        return tensor

    def sha256(self) -> str:
        return self.original.sha256()

    def write_tokenizer(self, folder: Path) -> None:
        self.original.write_tokenizer(folder)

    def transformers_config(self) -> Any:
        return self.original.transformers_config()


def calibrate(checkpoint: Checkpoint, ids: Sequence[int]) -> dict[str, Tensor]:
    """Factors float32 by the names of the tensors that are divided by them, from one text's activations."""
    largest: dict[str, Tensor] = {}

    def watch(name: str, x: Tensor) -> None:
        largest[name] = x.reshape(-1, x.shape[-1]).abs().amax(0)

    model = StreamedModel(checkpoint, torch.float32)
    model.watch(watch)
    for _ in model.hidden_states(list(ids)):
        pass
    shapes = checkpoint_tensors(checkpoint.config)
    factors = {}
    for layer in range(checkpoint.config.layers):
        for source, readers in PAIRS:
            names = [_name(layer, reader) for reader in readers]
            columns = [checkpoint.tensor(name, shapes[name]).float().abs().amax(0) for name in names]
            weights = torch.stack(columns).amax(0).clamp(min=SMALLEST)
            activations = largest[names[0]].clamp(min=SMALLEST)
            factor = activations**STRENGTH / weights ** (1 - STRENGTH)
            factors[_name(layer, source)] = factor / factor.log().mean().exp()
    return factors


def save_factors(factors: dict[str, Tensor], folder: Path) -> None:
    save_file(factors, folder / FILE)


def scaled_as(bundle: Path, checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with the factors that a bundle was exported with, where it was."""
    path = bundle / FILE
    return ScaledCheckpoint.of(checkpoint, load_file(path)) if path.is_file() else checkpoint


def _name(layer: int, module: str) -> str:
    return f"model.layers.{layer}.{module}.weight"
