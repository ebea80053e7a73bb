"""Sizes of layers by the gated delta rule (Yang et al., 2024), as `config.json` has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from h2o_export.architecture.kind_sizes import KindSizes
from h2o_export.architecture.values import integer
from h2o_runtime.errors import CheckpointError, UnsupportedModelError

MODULE = "linear_attn."  # in the names of such a layer's modules
KEY_UNIT = 8  # what kernels want sizes to be a multiple of


@dataclass(frozen=True)
class DeltaConfig(KindSizes):
    """A head of values has a state; neighbouring ones share a head of queries and keys.

    kernel  inputs that the convolution sees, a token's own among them
    """

    key_heads: int
    value_heads: int
    key_size: int
    value_size: int
    kernel: int

    @classmethod
    def read(cls, raw: dict[str, Any]) -> DeltaConfig:
        """Of a parsed `config.json`. Raises CheckpointError and UnsupportedModelError."""
        sizes = cls(
            key_heads=integer(raw, "linear_num_key_heads"),
            value_heads=integer(raw, "linear_num_value_heads"),
            key_size=integer(raw, "linear_key_head_dim"),
            value_size=integer(raw, "linear_value_head_dim"),
            kernel=integer(raw, "linear_conv_kernel_dim", least=2),
        )
        if sizes.value_heads % sizes.key_heads:
            raise CheckpointError(
                f"config.json: linear_num_value_heads ({sizes.value_heads}) is no multiple of linear_num_key_heads "
                f"({sizes.key_heads}); the file is damaged"
            )
        if sizes.key_size % KEY_UNIT or sizes.value_size % KEY_UNIT:
            raise UnsupportedModelError(
                f"heads of {sizes.key_size} and {sizes.value_size} elements in layers with a state are not "
                f"supported: both must be multiples of {KEY_UNIT}"
            )
        return sizes

    @property
    def keys(self) -> int:
        """Elements of all keys of a token."""
        return self.key_heads * self.key_size

    @property
    def values(self) -> int:
        return self.value_heads * self.value_size

    def module_rows(self, module: str) -> int | None:
        if MODULE not in module:
            return None
        sizes = {"in_proj_qkv": self.channels, "in_proj_z": self.values}
        return sizes.get(module.rpartition(".")[2], self.value_heads)

    def file_order(self, module: str) -> Tensor | None:
        return self.by_key_head(module) if MODULE in module else None

    def by_key_head(self, module: str) -> Tensor:
        """Where a fused matrix with the rows of one head of keys after the other's has those that are here q, k, v
        and z, or b and a, of all heads: int64 [rows].
        """
        group = self.value_heads // self.key_heads
        of_values = group * self.value_size
        gates = module.endswith("in_proj_ba")
        sizes = [group, group] if gates else [self.key_size, self.key_size, of_values, of_values]
        places = torch.arange(self.key_heads * sum(sizes)).view(self.key_heads, -1)
        return torch.cat([each.flatten() for each in places.split(sizes, dim=1)])

    @property
    def channels(self) -> int:
        """Of the convolution: queries, keys and values."""
        return 2 * self.keys + self.values
