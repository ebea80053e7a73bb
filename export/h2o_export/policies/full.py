"""Full attention: prefill attends like decode, and transformers' own attention is its reference."""

from __future__ import annotations

from typing import Any

from h2o_export.policies.base import MakeReference, PolicyEntry, Reference
from h2o_runtime.policies.prefill import PrefillPolicy
from h2o_runtime.policies.prefill.full import Full


class FullEntry(PolicyEntry[Full]):
    policy = Full

    def variants(self, policy: Full) -> tuple[PrefillPolicy[Any], ...]:
        return (policy,)

    def reference(self, policy: Full) -> MakeReference:
        return lambda model, sets: Reference("transformers")
