"""Prefill policies: each maps a layer's queries and cache to its attention output."""

from h2o_runtime.config import PrefillConfig
from h2o_runtime.policies.base import LayerCall, PrefillPolicy
from h2o_runtime.policies.full import Full
from h2o_runtime.policies.h2o import H2O

__all__ = ["H2O", "Full", "LayerCall", "PrefillPolicy", "make_policy"]


def make_policy(config: PrefillConfig) -> PrefillPolicy:
    """The policy that a configuration names."""
    if config.policy == "full":
        return Full(batch_size=config.batch_size)
    return H2O(
        chunk_size=config.chunk_size,
        batch_size=config.batch_size,
        local=config.local,
        heavy=config.heavy,
        score=config.score,
        score_window=config.score_window,
        score_heads=config.score_heads,
        sink=config.sink,
        dense_tail=config.dense_tail,
    )
