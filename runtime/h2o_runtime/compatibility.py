"""Which parts go together: each function raises ConfigError for what does not, before anything has changed."""

from __future__ import annotations

from typing import Any

from h2o_runtime.caches import Cache
from h2o_runtime.errors import ConfigError
from h2o_runtime.model import ModelSpec
from h2o_runtime.names import LatentChoice
from h2o_runtime.policies.decode import DecodePolicy
from h2o_runtime.policies.prefill import PrefillPolicy


def check_policy(model: ModelSpec, policy: PrefillPolicy[Any]) -> None:
    """Raises ConfigError for a policy whose operators want keys and values of one size, and a latent model."""
    if model.latent is not None and not policy.latent_forms:
        raise ConfigError(
            f"policy {policy.name} is not for latent attention, whose keys and values differ in size: use h2o or "
            "full",
            field="policy",
        )


def check_latent(model: ModelSpec, cache: Cache, decoding: DecodePolicy[Any], choice: LatentChoice) -> None:
    """Raises ConfigError for what does not go with a latent model, or with one that is none."""
    if model.latent is None:
        if choice != "auto":
            raise ConfigError("--latent is for models with latent attention: leave it out", field="latent")
        return
    if not cache.latent:
        raise ConfigError(
            f"the cache {cache.name} keeps keys and values, and a latent model has latents alone: use --cache "
            "contiguous or paged, without --cache-tokens",
            field="cache",
        )
    if not decoding.latent:
        raise ConfigError(
            f"--decode {decoding.name} is not for latent attention, whose keys and values differ in size: use "
            "--decode full",
            field="decode",
        )


def check_forgetting(cache: Cache, decoding: DecodePolicy[Any], pools: bool) -> None:
    """Raises ConfigError for what does not go with a cache that forgets. `pools`: sessions wait."""
    if cache.most_rows is None:
        return
    if not decoding.exact:
        raise ConfigError(
            f"--cache-tokens forgets what full attention sees least, and --decode {decoding.name} looks "
            "at a part only: use --decode full, or leave out --cache-tokens",
            field="cache_tokens",
        )
    if pools:
        raise ConfigError(
            "--cache-pool and --cache-dir keep conversations whole, and --cache-tokens forgets parts of them: "
            "leave out one or the other",
            field="cache_tokens",
        )
