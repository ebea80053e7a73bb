"""Rotary position embedding: how far each pair of a head turns from one token to the next."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from h2o_export.architecture.values import integer, number
from h2o_runtime.errors import CheckpointError, UnsupportedModelError

ROPE_TYPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True)
class RopeConfig:
    """Base frequency and, where the checkpoint scales it, how.

    attention_factor  cosines and sines are multiplied by it
    score_factor      the softmax scale of latent attention is multiplied by it
    """

    theta: float
    kind: str = "default"  # one of ROPE_TYPES, or "factors"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 0
    factors: tuple[float, ...] = ()  # of kind "factors", which no config.json has: a divisor for each pair
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    score_factor: float = 1.0

    def inverse_frequencies(self, head_size: int) -> NDArray[np.float32]:
        """Rotation per position of each pair, float32 [d/2]; Llama 3's rule is from its reference code."""
        # torch, in this very order of operations: one unit in the last place is felt at position 5,000.
        exponent = torch.arange(0, head_size, 2, dtype=torch.int64).float() / head_size
        frequencies = 1.0 / (self.theta**exponent)
        if self.kind == "factors":
            frequencies = 1.0 / (torch.tensor(self.factors) * self.theta**exponent)
        if self.kind == "linear":
            frequencies = frequencies / self.factor
        if self.kind == "llama3":
            frequencies = self._llama3(frequencies)
        if self.kind == "yarn":
            frequencies = self._yarn(frequencies, 1.0 / (self.factor * self.theta**exponent))
        inv_freq: NDArray[np.float32] = frequencies.numpy()
        return inv_freq

    def _llama3(self, frequencies: Tensor) -> Tensor:
        """Slow rotations are stretched by `factor`, fast ones kept, those between are blended."""
        turns = self.original_context / (2 * math.pi / frequencies)  # full turns within the original context
        span = self.high_freq_factor - self.low_freq_factor
        smooth = ((turns - self.low_freq_factor) / span).clamp(0.0, 1.0)
        blended: Tensor = (1.0 - smooth) * frequencies / self.factor + smooth * frequencies
        return blended

    def _yarn(self, unscaled: Tensor, stretched: Tensor) -> Tensor:
        """YaRN (Peng et al., 2023): pairs that turn more than `beta_fast` times within the original context are
        unscaled, those below `beta_slow` turns stretched, and the pairs between, counted, are blended."""
        size = 2 * len(unscaled)

        def pair(turns: float) -> float:
            span = math.log(self.original_context / (turns * 2 * math.pi))
            return size * span / (2 * math.log(self.theta))

        first, last = pair(self.beta_fast), pair(self.beta_slow)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, size - 1)
        if first == last:
            last += 0.001
        ramp = ((torch.arange(len(unscaled), dtype=torch.float32) - first) / (last - first)).clamp(0, 1)
        share = 1 - ramp
        blended: Tensor = stretched * (1 - share) + unscaled * share
        return blended


def read_rope(raw: dict[str, Any]) -> RopeConfig:
    """Of a parsed `config.json`, in both spellings: transformers 5 keeps all in `rope_parameters`, earlier ones
    split it in two. Raises UnsupportedModelError, CheckpointError."""
    scaling = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(scaling, dict):
        raise CheckpointError(f"config.json: rope_parameters must be an object, but is {scaling!r}")
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind not in ROPE_TYPES:
        known = ", ".join(ROPE_TYPES)
        raise UnsupportedModelError(f"RoPE scaling '{kind}' is not supported; supported are {known}")
    theta = number({"rope_theta": scaling.get("rope_theta", raw.get("rope_theta", 10000.0))}, "rope_theta")
    if kind == "linear":
        factor = number(scaling, "factor")
        return RopeConfig(theta, kind, factor=factor, score_factor=_score_factor(scaling, factor))
    if kind == "llama3":
        factor = number(scaling, "factor")
        return RopeConfig(
            theta,
            kind,
            factor=factor,
            low_freq_factor=number(scaling, "low_freq_factor"),
            high_freq_factor=number(scaling, "high_freq_factor"),
            original_context=integer(scaling, "original_max_position_embeddings"),
            score_factor=_score_factor(scaling, factor),
        )
    return _read_yarn(raw, scaling, theta) if kind == "yarn" else RopeConfig(theta)


def _read_yarn(raw: dict[str, Any], scaling: dict[str, Any], theta: float) -> RopeConfig:
    longest = integer(raw, "max_position_embeddings", 2048)
    original = integer(scaling, "original_max_position_embeddings", longest)
    factor = number(scaling, "factor", longest / original)
    if theta <= 1:
        raise CheckpointError(f"config.json: rope_theta must be above 1 under YaRN, but is {theta}")
    given, all_dims = scaling.get("mscale"), scaling.get("mscale_all_dim")
    if given and all_dims:
        made = _magnitude(factor, number(scaling, "mscale")) / _magnitude(
            factor, number(scaling, "mscale_all_dim")
        )
    else:
        made = _magnitude(factor)
    return RopeConfig(
        theta,
        "yarn",
        factor=factor,
        original_context=original,
        beta_fast=number({"beta_fast": scaling.get("beta_fast") or 32}, "beta_fast"),
        beta_slow=number({"beta_slow": scaling.get("beta_slow") or 1}, "beta_slow"),
        truncate=bool(scaling.get("truncate", True)),
        attention_factor=number(scaling, "attention_factor", made),
        score_factor=_score_factor(scaling, factor),
    )


def _score_factor(scaling: dict[str, Any], factor: float) -> float:
    all_dims = scaling.get("mscale_all_dim")
    return _magnitude(factor, number(scaling, "mscale_all_dim")) ** 2 if all_dims else 1.0


def _magnitude(factor: float, weight: float = 1.0) -> float:
    """By what YaRN lets attention logits grow: √ of it, of a context that is `factor` times as long."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0
