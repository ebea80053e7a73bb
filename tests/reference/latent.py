"""The exporter's own modules run by torch, without a graph: latent models as fast to try as they are small.

Experts, which a graph lays out, are computed one by one here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from h2o_export.architecture.config import ModelConfig
from h2o_export.architecture.latent import LatentConfig
from h2o_export.checkpoints.checkpoint import Checkpoint
from h2o_export.dense.graphs import DenseGraph, dense_graphs, parameter_source
from h2o_export.dense.matrices import FREQUENCIES
from h2o_export.layers.latent import Absorb, Contract, Expand
from h2o_export.plan import Plan


@dataclass(frozen=True)
class Run:
    """logits float32 [n, V]; latents float32 [layers, n, r + dr]."""

    logits: NDArray[np.float32]
    latents: NDArray[np.float32]


class EagerModel:
    """`patch` lets torch execute placeholders of nodes for the length of a test."""

    def __init__(
        self, checkpoint: Checkpoint, patch: pytest.MonkeyPatch, config: ModelConfig | None = None
    ) -> None:
        self.checkpoint = checkpoint
        self.config = config or checkpoint.config
        self.plan = Plan.of(self.config)
        patch.setattr(torch.onnx.ops, "symbolic", _computed)
        self.parts = [self._loaded(part) for part in dense_graphs(self.plan)]
        self.matrices = [
            layer.kind.small_parameters(checkpoint, number, torch.float32)
            for number, layer in enumerate(self.plan.layers)
        ]

    @torch.no_grad()
    def run(self, ids: NDArray[np.int64], form: str = "absorbed") -> Run:
        """A whole prompt, every token seeing those before it."""
        scale = self.plan.layers[0].spec.scale
        tokens = torch.from_numpy(ids.astype(np.int64))
        residual, cos, sin, q, k = self.parts[0](tokens, torch.arange(len(ids)))
        latents = []
        for layer, part in enumerate(self.parts[1:]):
            latents.append(k[:, 0].numpy())
            attention = self._attend(layer, q, k, scale, form)
            if layer + 1 < self.config.layers:
                residual, q, k = part(attention, residual, cos, sin)
        (logits,) = self.parts[-1](attention, residual)
        return Run(logits.numpy(), np.stack(latents))

    def _attend(self, layer: int, q: Tensor, k: Tensor, scale: float, form: str) -> Tensor:
        latent = self.config.sizes(LatentConfig)
        assert latent is not None
        if form == "expanded":
            k, v = self._step(Expand, layer)(k)
            return causal(q, k, v, scale)
        k = k.expand(-1, self.config.query_heads, -1)
        context = causal(self._step(Absorb, layer)(q), k, k[..., : latent.rank], scale)
        attention: Tensor = self._step(Contract, layer)(context)
        return attention

    def _step(self, module: Callable[[ModelConfig], nn.Module], layer: int) -> nn.Module:
        made = module(self.config)
        for name, parameter in made.named_parameters():
            parameter.data = self.matrices[layer][name]
        return made

    def _loaded(self, part: DenseGraph) -> nn.Module:
        with torch.device("meta"):
            module = part.make(self.plan)
        state: dict[str, Tensor] = {}
        for name, parameter in module.named_parameters():
            if name.endswith(FREQUENCIES):
                size = self.plan.rotary_sizes[0]
                state[name] = torch.from_numpy(self.config.rope.inverse_frequencies(size))
            else:
                source = parameter_source(part, name, self.plan)
                state[name] = self.checkpoint.tensor(source, tuple(parameter.shape)).float()
        module.load_state_dict(state, assign=True)
        return module


def causal(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """q, k [n, H, d], v [n, H, dv] → [n, H, dv]."""
    scores = torch.einsum("ihd,jhd->hij", q, k) * scale
    scores = scores.masked_fill(~torch.ones(len(q), len(q)).tril().bool(), -torch.inf)
    return torch.einsum("hij,jhd->ihd", scores.softmax(dim=-1), v)


def _computed(name: str, given: tuple[Tensor, ...], attributes: Any, **kinds: Any) -> Tensor:
    """What a node of a traced graph stands for."""
    return _NODES[name](*given, **attributes) if name in _NODES else _experts(given)


def _norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon))


def _rotation(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [n, H, d]; cos, sin [n, d/2]: element i turns with element i + d/2."""
    a, b = x.chunk(2, dim=-1)
    c, s = cos[:, None], sin[:, None]
    return torch.cat((a * c - b * s, b * c + a * s), dim=-1)


_NODES: dict[str, Callable[..., Tensor]] = {
    "h2o::RMSNorm": _norm,
    "h2o::GeGLU": lambda gate, up: F.gelu(gate, approximate="tanh") * up,
    "h2o::SwiGLU": lambda gate, up: F.silu(gate) * up,
    "h2o::Rotation": _rotation,
}


def _experts(given: tuple[Tensor, ...]) -> Tensor:
    """What the placeholder stands for: x [n, D], chosen [n, k], three matrices an expert → [n, k, D]."""
    x, chosen, *matrices = given
    out = torch.empty(*chosen.shape, x.shape[1])
    for row, slot in np.ndindex(*chosen.shape):
        gate, up, down = matrices[3 * int(chosen[row, slot]) :][:3]
        inner = F.silu(x[row] @ gate.T) * (x[row] @ up.T)
        out[row, slot] = inner @ down.T
    return out
