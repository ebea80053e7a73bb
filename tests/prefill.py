"""Prefill policies from settings, for tests that vary them."""

from __future__ import annotations

from typing import Any

from h2o_runtime.components.options import options_of
from h2o_runtime.policies.prefill import PREFILL, PrefillPolicy


def prefill_of(policy: str = "h2o", **settings: Any) -> PrefillPolicy[Any]:
    """The policy with these settings."""
    return PREFILL.make({"policy": policy, **settings})


def altered(policy: PrefillPolicy[Any], /, **changes: Any) -> PrefillPolicy[Any]:
    """The policy with other settings. With another `policy`, the settings that both have stay."""
    if "policy" not in changes:
        return PREFILL.make(changes, policy)
    other = PREFILL.make({name: value for name, value in changes.items() if name in ("policy", "score")})
    both = {one.name for one in options_of(type(other)) if not one.fixed}
    shared = {one.name: getattr(policy, one.name) for one in options_of(type(policy)) if one.name in both}
    return PREFILL.make(shared | changes)
