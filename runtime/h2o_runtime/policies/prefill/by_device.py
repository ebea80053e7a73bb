"""The default prefill rule as is fastest on a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from h2o_runtime.caches.reuse import same_arithmetic
from h2o_runtime.policies.prefill.h2o import Query
from h2o_runtime.policies.prefill.policy import PrefillPolicy

# By `Device.name`: for so many first tokens full attention is faster than choosing keys. On an H200 it took 0.76 to
# 0.81 of the time for the first 4,096, and longer for the next 4,096: docs/policies.md.
DENSE_START: Mapping[str, int] = MappingProxyType({"cuda": 4096})


def policy_on_device(policy: PrefillPolicy[Any], device: str) -> PrefillPolicy[Any]:
    """A bundle's policy, or one of flags or a request → that of prompts on a device.

    Settings other than the default rule's hold on every device, and so does a policy that is given from Python.
    """
    start = DENSE_START.get(device, 0)
    if not (start and isinstance(policy, Query) and same_arithmetic(policy, Query())):
        return policy
    return replace(policy, dense_start=start)
