"""Which parts are compatible. Each function raises ConfigError before anything has changed."""

from __future__ import annotations

from typing import Any

from h2o_runtime.caches import Cache
from h2o_runtime.devices import Device
from h2o_runtime.errors import ConfigError
from h2o_runtime.layers.live import Layers
from h2o_runtime.policies.decode import DecodePolicy
from h2o_runtime.policies.prefill import PrefillPolicy


def check_policy(layers: Layers, policy: PrefillPolicy[Any], device: Device) -> None:
    """Raises ConfigError for a policy that the device cannot run, or whose operators do not support the rows
    of the model's layers.
    """
    if refusal := policy.refusal(device.name):
        raise ConfigError(f"{refusal}: use `device=cpu`, or leave it out", field="policy")
    for kind in layers.kinds.values():
        if reason := kind.prefill_refusal(policy):
            raise ConfigError(reason, field="policy")
    model = layers.model.under_policies
    if not model.one_row:
        if not policy.mixed_rows:
            raise ConfigError(
                f"`policy={policy.name}` {MIXED}: use `policy=h2o` or `policy=full`", field="policy"
            )
        policy.state_bytes(model, 1)  # raises where its state wants as many heads in all layers
    if model.has_sinks and not policy.joined_by_sinks:
        raise ConfigError(
            f"`policy={policy.name}` {SINKS}: use `policy=h2o` or `policy=full`", field="policy"
        )


def check_layers(layers: Layers, cache: Cache, decoding: DecodePolicy[Any], device: Device) -> None:
    """Raises ConfigError for a cache that cannot store the rows of the model's layers, and for a decode
    policy that the device cannot run, or whose operators do not support them.
    """
    if device.name != "cpu" and decoding.only_on_cpu:
        raise ConfigError(f"{decoding.only_on_cpu}: use `device=cpu`, or leave it out", field="decode")
    for kind in layers.kinds.values():
        if reason := kind.cache_refusal(cache):
            raise ConfigError(reason, field="cache")
        if reason := kind.decode_refusal(decoding):
            raise ConfigError(reason, field="decode")
    if not layers.model.with_rows.one_row and not cache.mixed_rows:
        raise ConfigError(
            f"`cache={cache.name}` {MIXED}: use `cache=contiguous` or `cache=paged`",
            field="cache",
        )
    if layers.model.lends_rows and not cache.lends_rows:
        raise ConfigError(
            f"`cache={cache.name}` {LENT}: use `cache=contiguous` or `cache=paged`",
            field="cache",
        )
    if not layers.model.under_policies.one_row and not decoding.mixed_rows:
        raise ConfigError(f"`decode={decoding.name}` {MIXED}: use `decode=full`", field="decode")
    if not layers.model.has_sinks:
        return
    if not decoding.joined_by_sinks:
        raise ConfigError(f"`decode={decoding.name}` {SINKS}: use `decode=full`", field="decode")
    if cache.most_rows is not None:
        raise ConfigError(f"`cache={cache.name}` {SINKS}: use another cache", field="cache")


def check_eviction(cache: Cache, decoding: DecodePolicy[Any], pools: bool) -> None:
    """Raises ConfigError for settings that exclude a cache that evicts. `pools`: sessions wait in a pool."""
    if cache.most_rows is None:
        return
    if not decoding.exact:
        raise ConfigError(
            f"`cache=evicting` evicts by the attention of all tokens, and `decode={decoding.name}` computes only "
            "some of it: use `decode=full`, or another cache",
            field="cache",
        )
    if pools:
        raise ConfigError(
            "`cache_pool` and `cache_dir` store whole conversations, and `cache=evicting` evicts tokens of them: "
            "leave out one or the other",
            field="cache",
        )


SINKS = "has no operators with attention sinks, which this model's layers have"
LENT = "lends no layer's rows to others, and some layers of this model have no keys of their own"
MIXED = "needs keys and values of one size in all layers, and this model's layers differ in them"
