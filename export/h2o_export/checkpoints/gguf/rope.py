"""How the model in a GGUF file rotates queries and keys: metadata, and tensors of factors."""

from __future__ import annotations

from typing import Any

import numpy as np
from gguf import dequantize
from numpy.typing import NDArray

from h2o_export.architecture.rope import SHARE
from h2o_export.checkpoints.gguf import latent
from h2o_export.checkpoints.gguf.header import Metadata
from h2o_runtime.errors import CheckpointError, UnsupportedModelError

FACTORS = "rope_freqs.weight"
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
TENSORS = frozenset((FACTORS, LONG_FACTORS, SHORT_FACTORS))
LOG_MULTIPLIER = "yarn_log_multiplier"
STILL = 1e20  # a pair whose frequency is divided by this much or more does not turn in any text


def rotation(value: Metadata, allowed: tuple[str, ...]) -> dict[str, Any]:
    """The `rope_parameters` of config.json. `allowed` are settings of YaRN that the architecture reads itself.

    Raises CheckpointError and UnsupportedModelError, as all functions here.
    """
    base = value("rope.freq_base")
    theta = 10000.0 if base is None else base
    if LONG_FACTORS in value.header.tensors:
        return {"rope_type": "longrope", "rope_theta": theta} | _longrope(value)
    factor = value("rope.scaling.factor") or value("rope.scale_linear") or 1.0
    kind = value("rope.scaling.type") or "linear"  # llama.cpp's default; a factor of 1 means no scaling
    if kind == "none" or (kind == "linear" and factor == 1):
        return {"rope_type": "default", "rope_theta": theta}
    scaling = {"rope_type": kind, "rope_theta": theta, "factor": factor}
    return scaling | _yarn(value, allowed) if kind == "yarn" else scaling


def factors(value: Metadata, name: str, rotated: int | None = None) -> NDArray[np.float32] | None:
    """The divisors of RoPE's frequencies, float32 [rotated / 2], which store Llama 3's scaling. None: the
    file has no such tensor.
    """
    header = value.header
    stored = header.tensors.get(name)
    if stored is None:
        return None
    if rotated is not None and stored.shape != (rotated // 2,):
        raise CheckpointError(
            f"{header.path}: {name} has shape {list(stored.shape)}, but heads of {rotated} elements "
            f"have {rotated // 2} frequencies; download it again"
        )
    data = np.fromfile(stored.path, np.uint8, stored.length, offset=stored.offset)
    found: NDArray[np.float32] = dequantize(data, stored.kind)
    if not np.all(np.isfinite(found) & (found > 0)):
        raise CheckpointError(f"{header.path}: {name} must hold positive numbers; download it again")
    return found


def proportional(value: Metadata) -> dict[str, Any]:
    """RoPE of which only the first pairs turn: the file divides the frequencies of the others by a huge number."""
    divisors = factors(value, FACTORS, value.number("attention.key_length"))
    if divisors is None:
        raise CheckpointError(f"{value.header.path}: has no tensor '{FACTORS}'; download it again")
    turning = int((divisors == 1).sum())
    if not turning or not np.all(divisors[:turning] == 1) or not np.all(divisors[turning:] >= STILL):
        raise UnsupportedModelError(
            f"{value.header.path}: {FACTORS} must only stop the rotation of the last pairs; other factors are not "
            "supported for this architecture"
        )
    return {"rope_type": "proportional", SHARE: turning / len(divisors)}


def _longrope(value: Metadata) -> dict[str, Any]:
    """llama.cpp multiplies by the factor in the file, or by 1 if there is none."""
    long, short = (factors(value, name) for name in (LONG_FACTORS, SHORT_FACTORS))
    return {
        "long_factor": None if long is None else long.tolist(),
        "short_factor": None if short is None else short.tolist(),
        "original_max_position_embeddings": value("rope.scaling.original_context_length"),
        "attention_factor": value("rope.scaling.attn_factor") or 1.0,
    }


def _yarn(value: Metadata, allowed: tuple[str, ...]) -> dict[str, Any]:
    """YaRN's settings besides its factor."""
    path = value.header.path
    original = value("rope.scaling.original_context_length")
    if original is None:
        raise CheckpointError(
            f"{path}: RoPE is scaled by YaRN, and its metadata lack rope.scaling.original_context_length; "
            "download it again"
        )
    for key in ("attn_factor", LOG_MULTIPLIER, "yarn_ext_factor", "yarn_attn_factor"):
        if value(f"rope.scaling.{key}") is not None and f"rope.scaling.{key}" not in allowed:
            raise UnsupportedModelError(f"{path}: YaRN with rope.scaling.{key} is not supported")
    betas = {name: value(f"rope.scaling.yarn_{name}") for name in ("beta_fast", "beta_slow")}
    factors = latent.yarn_factors(value) if value.name == latent.NAME else {}
    return {"original_max_position_embeddings": original, **betas, **factors}
