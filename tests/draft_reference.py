"""The layer that drafts tokens in float64, from a checkpoint's tensors as its config.json describes them."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional


def reference(checkpoint: Path, most: int) -> Reference:
    """most: the first tokens, which it chooses from."""
    raw = json.loads((checkpoint / "config.json").read_text())
    return (LatentReference if "kv_lora_rank" in raw else GatedReference)(checkpoint, raw, most)


class Reference(ABC):
    """One decoder layer over merged embeddings and hidden states. `layer` begins its tensors' names.

    out  what the head read last, [D]
    """

    layer: str
    token_norm: str
    hidden_norm: str
    merging: str
    norm: str
    out: Tensor
    added = 0.0  # to the weights of norms

    def __init__(self, checkpoint: Path, raw: dict[str, Any], most: int) -> None:
        self.raw, self.most, self.hidden = raw, most, raw["hidden_size"]
        stored = load_file(checkpoint / "model.safetensors")
        self.given = {name: tensor.double() for name, tensor in stored.items()}

    def draft(self, tokens: list[int], hidden: NDArray[np.float32], count: int) -> list[int]:
        known, seen = list(tokens), torch.from_numpy(hidden).double()
        for _ in range(count):
            logits, self.out = self._after(known, seen)
            known.append(int(logits.argmax()))
            seen = torch.cat((seen, self.out[None]))
        return known[len(tokens) :]

    def _after(self, tokens: list[int], hidden: Tensor) -> tuple[Tensor, Tensor]:
        table = self.given["model.embed_tokens.weight"]
        both = self._normed(table[tokens], self.token_norm), self._normed(hidden, self.hidden_norm)
        x = self._product(torch.cat(both, dim=1), self.merging)
        x = x + self.attention(self._normed(x, f"{self.layer}input_layernorm"))
        x = x + self.mlp(self._normed(x, f"{self.layer}post_attention_layernorm"))
        out = self._normed(x, self.norm)[-1]
        head = self.given.get("lm_head.weight", table)
        return out @ head[: self.most].T, out

    @abstractmethod
    def attention(self, x: Tensor) -> Tensor: ...

    def mlp(self, x: Tensor) -> Tensor:
        return self._swiglu(x, f"{self.layer}mlp")

    def _swiglu(self, x: Tensor, module: str) -> Tensor:
        gate, up = (self._product(x, f"{module}.{name}_proj") for name in ("gate", "up"))
        return self._product(functional.silu(gate) * up, f"{module}.down_proj")

    def _experts(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """weights, chosen [n, k]: one token and one expert after the other."""
        rows = [
            sum(
                weight * self._swiglu(row[None], f"{self.layer}mlp.experts.{expert}")[0]
                for weight, expert in zip(weights[i], chosen[i].tolist(), strict=True)
            )
            for i, row in enumerate(x)
        ]
        return torch.stack([torch.as_tensor(row) for row in rows])

    def _product(self, x: Tensor, module: str) -> Tensor:
        return x @ self.given[f"{module}.weight"].T

    def _normed(self, x: Tensor, module: str, epsilon: float | None = None) -> Tensor:
        epsilon = self.raw["rms_norm_eps"] if epsilon is None else epsilon
        weight = self.added + self.given[f"{module}.weight"]
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + epsilon) * weight

    def _seen(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q, k [n, H, d], v [n, H, dv] → [n, H · dv], causal."""
        n, _, d = q.shape
        scores = torch.einsum("ihd,jhd->hij", q, k) / d**0.5
        scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)
        return torch.einsum("hij,jhd->ihd", scores.softmax(-1), v).reshape(n, -1)

    def _angles(self, n: int, size: int) -> tuple[Tensor, Tensor]:
        base = self.raw["rope_parameters"]["rope_theta"]
        angles = torch.arange(n).double()[:, None] / base ** (torch.arange(0, size, 2).double() / size)
        return angles.cos()[:, None], angles.sin()[:, None]


class GatedReference(Reference):
    """Of Qwen3.5: attention behind a gate; an MLP, or experts by softmax and a shared one behind a gate."""

    layer = "mtp.layers.0."
    token_norm, hidden_norm = "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden"
    merging, norm = "mtp.fc", "mtp.norm"
    added = 1.0

    def attention(self, x: Tensor) -> Tensor:
        names, n, d = f"{self.layer}self_attn.", len(x), self.raw["head_dim"]
        made = {name: self._product(x, f"{names}{name}_proj") for name in "qkv"}
        q, gate = made["q"].view(n, -1, 2 * d).split(d, dim=2)
        k, v = (made[name].view(n, -1, d) for name in "kv")
        q = self._rotated(self._normed(q, f"{names}q_norm"))
        k = self._rotated(self._normed(k, f"{names}k_norm"))
        k, v = (rows.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for rows in (k, v))
        return self._product(self._seen(q, k, v) * gate.reshape(n, -1).sigmoid(), f"{names}o_proj")

    def mlp(self, x: Tensor) -> Tensor:
        module = f"{self.layer}mlp"
        if f"{module}.gate.weight" not in self.given:
            return super().mlp(x)
        best = self._product(x, f"{module}.gate").softmax(-1).topk(self.raw["num_experts_per_tok"])
        weights = best.values / best.values.sum(-1, keepdim=True)
        shared = self._product(x, f"{module}.shared_expert_gate").sigmoid()
        routed = self._experts(x, weights, best.indices)
        return routed + shared * self._swiglu(x, f"{module}.shared_expert")

    def _rotated(self, x: Tensor) -> Tensor:
        """Halves of the first quarter of a head."""
        size = x.shape[2] // 4
        cos, sin = self._angles(len(x), size)
        first, second, rest = x.split((size // 2, size // 2, x.shape[2] - size), dim=2)
        return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=2)


class LatentReference(Reference):
    """Of DeepSeek-V3: keys and values of every head from a latent; experts by sigmoids, from the best groups."""

    def __init__(self, checkpoint: Path, raw: dict[str, Any], most: int) -> None:
        super().__init__(checkpoint, raw, most)
        self.layer = f"model.layers.{raw['num_hidden_layers']}."
        self.token_norm, self.hidden_norm = f"{self.layer}enorm", f"{self.layer}hnorm"
        self.merging, self.norm = f"{self.layer}eh_proj", f"{self.layer}shared_head.norm"

    def attention(self, x: Tensor) -> Tensor:
        raw, names, n = self.raw, f"{self.layer}self_attn.", len(x)
        heads, nope, rope = raw["num_attention_heads"], raw["qk_nope_head_dim"], raw["qk_rope_head_dim"]
        low = self._normed(self._product(x, f"{names}q_a_proj"), f"{names}q_a_layernorm", 1e-6)
        q = self._product(low, f"{names}q_b_proj").view(n, heads, nope + rope)
        both = self._product(x, f"{names}kv_a_proj_with_mqa")
        latent = self._normed(both[:, : raw["kv_lora_rank"]], f"{names}kv_a_layernorm", 1e-6)
        expanded = self._product(latent, f"{names}kv_b_proj").view(n, heads, nope + raw["v_head_dim"])
        turned = self._turned(both[:, None, raw["kv_lora_rank"] :]).expand(n, heads, rope)
        q = torch.cat((q[..., :nope], self._turned(q[..., nope:])), dim=2)
        k = torch.cat((expanded[..., :nope], turned), dim=2)
        return self._product(self._seen(q, k, expanded[..., nope:]), f"{names}o_proj")

    def _turned(self, x: Tensor) -> Tensor:
        """Neighbours, as complex numbers."""
        cos, sin = self._angles(len(x), x.shape[2])
        turned = torch.view_as_complex(x.reshape(*x.shape[:2], -1, 2).contiguous()) * torch.complex(cos, sin)
        return torch.view_as_real(turned).flatten(2)

    def mlp(self, x: Tensor) -> Tensor:
        raw, module = self.raw, f"{self.layer}mlp"
        scores = self._product(x, f"{module}.gate").sigmoid()
        corrected = scores + self.given[f"{module}.gate.e_score_correction_bias"]
        grouped = corrected.view(len(x), raw["n_group"], -1)
        kept = grouped.topk(2, dim=-1).values.sum(-1).topk(raw["topk_group"], dim=-1).indices
        left_out = torch.ones(grouped.shape[:2]).bool().scatter(1, kept, False)
        choice = grouped.masked_fill(left_out[:, :, None], -torch.inf).flatten(1)
        chosen = choice.topk(raw["num_experts_per_tok"], dim=-1).indices
        weights = scores.gather(1, chosen)
        weights = weights / weights.sum(-1, keepdim=True) * raw["routed_scaling_factor"]
        return self._experts(x, weights, chosen) + self._swiglu(x, f"{module}.shared_experts")
