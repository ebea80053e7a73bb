"""Rotary position embedding: the angle of each pair of a head per token."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from h2o_export.architecture.values import integer, number
from h2o_runtime.errors import CheckpointError, UnsupportedModelError

ROPE_TYPES = ("default", "linear", "dynamic", "proportional", "llama3", "yarn", "longrope")
SHARE = "partial_rotary_factor"  # key of config.json: the fraction of a head that RoPE rotates
ORIGINAL = "original_max_position_embeddings"
LONGROPE = ("longrope", "su", "yarn")  # the name in older checkpoints with lists of factors


@dataclass(frozen=True)
class RopeConfig:
    """Base frequency and, if the checkpoint scales it, the scaling. The dynamic one begins beyond the longest text.

    attention_factor  cosines and sines are multiplied by it
    share             of the pairs, under proportional RoPE: the fastest ones rotate, and the others stand still
    score_factor      the softmax scale of latent attention is multiplied by it
    query_growth      by how much queries grow with the logarithm of the position in original contexts (Llama 4;
                      Nakanishi, 2025); 0: they do not
    ends              whether texts beyond the longest one would be rotated otherwise
    """

    theta: float
    kind: str = "default"  # one of ROPE_TYPES, or "factors", which LongRoPE is read as
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 0
    factors: tuple[float, ...] = ()  # of kind "factors": a divisor for each pair
    short_factors: tuple[
        float, ...
    ] = ()  # those for a context no longer than the original one, if they differ
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    share: float = 1.0
    score_factor: float = 1.0
    query_growth: float = 0.0
    ends: bool = False

    def inverse_frequencies(self, head_size: int) -> NDArray[np.float32]:
        """Rotation per position of each pair, float32 [d/2]; Llama 3's rule is from its reference code."""
        # torch, in this exact order of operations: one unit in the last place matters at position 5,000.
        exponent = torch.arange(0, head_size, 2, dtype=torch.int64).float() / head_size
        frequencies = 1.0 / (self.theta**exponent)
        if self.kind == "factors":
            frequencies = 1.0 / (torch.tensor(self.factors) * self.theta**exponent)
        if self.kind in ("linear", "proportional"):
            frequencies = frequencies / self.factor
        if self.kind == "proportional":
            frequencies[int(self.share * head_size // 2) :] = 0
        if self.kind == "llama3":
            frequencies = self._llama3(frequencies)
        if self.kind == "yarn":
            frequencies = self._yarn(frequencies, 1.0 / (self.factor * self.theta**exponent))
        inv_freq: NDArray[np.float32] = frequencies.numpy()
        return inv_freq

    def in_transformers(self) -> dict[str, Any]:
        """Keys of `rope_parameters` with which transformers divides by `factors`, whatever a text's length.

        Its only scaling with explicit factors has two lists, for two lengths.
        """
        factors = list(self.factors)
        return {
            "rope_type": "longrope",
            "short_factor": factors,
            "long_factor": factors,
            "factor": 1.0,
            "attention_factor": self.attention_factor,
        }

    def limited(self, context: int) -> RopeConfig:
        """The same for texts of at most `context` tokens."""
        if context > self.original_context:
            return self
        less = replace(self, factors=self.short_factors or self.factors, short_factors=(), query_growth=0.0)
        return replace(less, ends=self.ends or less != self)

    def _llama3(self, frequencies: Tensor) -> Tensor:
        """Slow rotations are stretched by `factor`, fast ones unchanged, and those between blended."""
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


def longest(raw: dict[str, Any]) -> int:
    """Tokens of the longest text that a model is for."""
    return integer(raw, "max_position_embeddings", limit=sys.maxsize)


def rotation(raw: dict[str, Any]) -> dict[str, Any]:
    """Of all layers, from a parsed `config.json` in both spellings: transformers 5 stores all in `rope_parameters`,
    earlier versions split it. As in transformers, `rope_scaling` comes before `rope_parameters`, and the original
    context beside them before the one inside. Raises CheckpointError.
    """
    given = raw.get("rope_scaling") or raw["rope_parameters"] or {}
    if not isinstance(given, dict) or any(isinstance(value, dict) for value in given.values()):
        raise CheckpointError(f"config.json: rope_parameters must be an object, but is {given!r}")
    original = {ORIGINAL: raw[ORIGINAL]} if ORIGINAL in raw else {}
    return {"rope_theta": raw["rope_theta"], **given, **original}


def read_rope(raw: dict[str, Any], rotated: int) -> RopeConfig:
    """Of all layers, of which `rotated` elements of a head are rotated. Raises UnsupportedModelError,
    CheckpointError.
    """
    return _read(rotation(raw), longest(raw), rotated)


def read_ropes(
    raw: dict[str, Any], rotated: int, kinds: Sequence[str], thetas: Mapping[str, Any], scaled: str
) -> tuple[RopeConfig, ...]:
    """Of every layer, by its kind as layer_types has it: transformers 5 has `rope_parameters` of each kind, earlier
    ones one rotation, whose scaling is for the kind `scaled`. `thetas` are bases where a kind has none. Raises as
    `read_rope`."""
    given, scaling = raw["rope_parameters"] or {}, raw.get("rope_scaling") or {}
    if not isinstance(given, dict) or not isinstance(scaling, dict):
        raise CheckpointError(f"config.json: rope_parameters must be an object, but is {given or scaling!r}")
    if given and not given.keys() & thetas.keys():
        raise CheckpointError(
            f"config.json: rope_parameters must have the rotations of {' and '.join(thetas)}, but is {given!r}"
        )
    configs = {}
    for kind, theta in thetas.items():
        fields = given.get(kind) or {}
        if not isinstance(fields, dict):
            raise CheckpointError(f"config.json: the rotation of {kind} must be an object, but is {fields!r}")
        whole = {"rope_theta": theta, **fields, **(scaling if kind == scaled else {})}
        configs[kind] = _read(whole, longest(raw), rotated)
    return tuple(configs[kind] for kind in kinds)


def _read(scaling: dict[str, Any], context: int, rotated: int) -> RopeConfig:
    """From one object with all settings, of a model for texts of at most `context` tokens."""
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind in LONGROPE and "long_factor" in scaling:
        kind = "longrope"
    if kind not in ROPE_TYPES:
        known = ", ".join(ROPE_TYPES)
        raise UnsupportedModelError(f"RoPE scaling '{kind}' is not supported; supported are {known}")
    theta = number(scaling, "rope_theta")
    if kind == "default":
        return RopeConfig(theta)
    if kind == "proportional":
        return RopeConfig(theta, kind, number(scaling, "factor", 1.0), share=number(scaling, SHARE, 1.0))
    if kind == "longrope":
        return _read_longrope(scaling, context, theta, rotated)
    if kind == "yarn":
        return _read_yarn(scaling, context, theta)
    factor = number(scaling, "factor")
    score_factor, ends = _score_factor(scaling, factor), kind == "dynamic"
    config = RopeConfig(theta, kind, factor=factor, score_factor=score_factor, ends=ends)
    if kind != "llama3":
        return config
    return replace(
        config,
        low_freq_factor=number(scaling, "low_freq_factor"),
        high_freq_factor=number(scaling, "high_freq_factor"),
        original_context=integer(scaling, ORIGINAL, context),
    )


def _read_yarn(scaling: dict[str, Any], context: int, theta: float) -> RopeConfig:
    original = integer(scaling, ORIGINAL, context)
    factor = number(scaling, "factor", context / original)
    if theta <= 1:
        raise CheckpointError(f"config.json: rope_theta must be above 1 under YaRN, but is {theta}")
    given, all_dims = scaling.get("mscale"), scaling.get("mscale_all_dim")
    if given and all_dims:
        factor_ = _magnitude(factor, number(scaling, "mscale")) / _magnitude(
            factor, number(scaling, "mscale_all_dim")
        )
    else:
        factor_ = _magnitude(factor)
    return RopeConfig(
        theta,
        "yarn",
        factor=factor,
        original_context=original,
        beta_fast=number({"beta_fast": scaling.get("beta_fast") or 32}, "beta_fast"),
        beta_slow=number({"beta_slow": scaling.get("beta_slow") or 1}, "beta_slow"),
        truncate=bool(scaling.get("truncate", True)),
        attention_factor=number(scaling, "attention_factor", factor_),
        score_factor=_score_factor(scaling, factor),
    )


def _read_longrope(scaling: dict[str, Any], context: int, theta: float, rotated: int) -> RopeConfig:
    """LongRoPE (Ding et al., 2024): one list of factors up to the original context, another one beyond.

    transformers switches lists by the length of each text. Here one list serves all texts of a bundle,
    because cached keys cannot be rotated again.
    """
    original = integer(scaling, ORIGINAL, context)
    factor = number(scaling, "factor", context / original)
    grown = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 and original > 1 else 1.0
    found = RopeConfig(
        theta,
        "factors",
        original_context=original,
        factors=_factors(scaling, "long_factor", rotated),
        short_factors=_factors(scaling, "short_factor", rotated),
        attention_factor=number(scaling, "attention_factor", grown),
        score_factor=_score_factor(scaling, factor),
    )
    return found.limited(context)


def _factors(scaling: dict[str, Any], key: str, rotated: int) -> tuple[float, ...]:
    factors = scaling.get(key)
    if not isinstance(factors, list) or len(factors) != rotated // 2:
        raise CheckpointError(
            f"config.json: {key} must be a list of {rotated // 2} numbers, one for each pair that is rotated"
        )
    return tuple(number({key: factor}, key) for factor in factors)


def _score_factor(scaling: dict[str, Any], factor: float) -> float:
    all_dims = scaling.get("mscale_all_dim")
    return _magnitude(factor, number(scaling, "mscale_all_dim")) ** 2 if all_dims else 1.0


def _magnitude(factor: float, weight: float = 1.0) -> float:
    """The factor by which YaRN increases attention logits: its square root, for a context `factor` times as
    long.
    """
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0
