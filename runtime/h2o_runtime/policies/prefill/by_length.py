"""The prefill policy of prompts for which none is chosen: the fastest that loses no more than the default."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from h2o_runtime.caches.reuse import same_arithmetic
from h2o_runtime.policies.prefill.base import PrefillPolicy
from h2o_runtime.policies.prefill.full import Full
from h2o_runtime.policies.prefill.h2o import Query

# By `Device.name`: for fewer new tokens full attention is as fast as the default rule. Measured on an H200, where
# that rule gained nothing up to 8,192 tokens, and 1.25 at 16,384: docs/policies.md.
FULL_BELOW: Mapping[str, int] = MappingProxyType({"cuda": 16_384})


def full_for_short(policy: PrefillPolicy[Any], device: str) -> tuple[PrefillPolicy[Any], int]:
    """`policy` of a bundle → the policy of prompts with fewer new tokens than the second value.

    A bundle's own settings hold for every length: then no prompt is short.
    """
    if not same_arithmetic(policy, Query()):
        return policy, 0
    return Full(batch_size=policy.batch_size), FULL_BELOW.get(device, 0)
