"""How a family's files arrange a layer's matrices, if it differs from this exporter.

Here every projection is a separate matrix, RoPE rotates the first half of the rotated elements against the
second, and a norm multiplies by its weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

QKV = ("self_attn.qkv_proj", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"))
DELTA_QKVZ = ("linear_attn.in_proj_qkvz", ("linear_attn.in_proj_qkv", "linear_attn.in_proj_z"))
DELTA_BA = ("linear_attn.in_proj_ba", ("linear_attn.in_proj_b", "linear_attn.in_proj_a"))
GATE_UP = ("mlp.gate_up_proj", ("mlp.gate_proj", "mlp.up_proj"))
_NORMS = ("norm.weight", "norm_embedding.weight", "norm_hidden.weight")
_ROTATED = ("self_attn.q_proj", "self_attn.k_proj")


@dataclass(frozen=True)
class Arrangement:
    """Names are those of a layer's modules; methods take them with anything before `self_attn` or `mlp`.

    fused       a module of the files, and the ones here whose rows it has one below the other
    neighbours  whether RoPE turns neighbouring rows of q and k against each other
    less        by what the weights of norms are less than what a norm multiplies by
    stacked     how one tensor has the matrices of all experts: [E, in, out] with gate and up column by column in
                turn, or [E, out, in] with gate above up, where the files do that; None: never
    by_key_head whether `fused` modules of layers with a state have the rows of one head of keys after the other's
    whole       ends of the names of norms whose weights are not
    renamed     parts of tensors' names in the files, and what they are here
    """

    fused: tuple[tuple[str, tuple[str, ...]], ...] = ()
    neighbours: bool = False
    less: float = 0.0
    stacked: Literal["interleaved", "halves"] | None = None
    by_key_head: bool = False
    whole: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()

    def split(self, module: str) -> tuple[str, ...]:
        """The modules here that form one module of the files."""
        for fused, modules in self.fused:
            if module.endswith(fused):
                return tuple(module.removesuffix(fused) + part for part in modules)
        return (module,)

    def holder(self, module: str) -> str:
        """The module of the files that contains a module of this exporter."""
        for fused, modules in self.fused:
            for part in modules:
                if module.endswith(part):
                    return module.removesuffix(part) + fused
        return module

    def lessened(self, tensor: str) -> float:
        """What must be added to the files' values of a tensor."""
        return self.less if tensor.endswith(_NORMS) and not tensor.endswith(self.whole) else 0.0

    def here(self, stored: str) -> str:
        """What a tensor or module of the files is named here. A module's name ends with a dot."""
        for there, here in self.renamed:
            stored = stored.replace(there, here)
        return stored

    def there(self, name: str) -> str:
        """The inverse of `here`."""
        for there, here in reversed(self.renamed):
            name = name.replace(here, there)
        return name

    def paired(self, module: str) -> bool:
        """Whether the files store the rows of a module in pairs of neighbours."""
        return self.neighbours and module.endswith(_ROTATED)


AS_HERE = Arrangement()


def halves(rows: Tensor, heads: int, rotated: int) -> Tensor:
    """Reorder rows [heads · d, …] of q or k: among the first `rotated` of each head, neighbours move half a
    span apart.
    """
    return _reordered(rows, heads, torch.arange(rotated).view(-1, 2).T.flatten())


def neighbours(rows: Tensor, heads: int, rotated: int) -> Tensor:
    """The inverse of `halves`."""
    return _reordered(rows, heads, torch.arange(rotated).view(2, -1).T.flatten())


def _reordered(rows: Tensor, heads: int, order: Tensor) -> Tensor:
    """The first rows of each head in `order`, and the others as they are."""
    by_head = rows.view(heads, -1, *rows.shape[1:])
    first = by_head[:, order]
    return torch.cat((first, by_head[:, len(order) :]), dim=1).reshape(rows.shape)
