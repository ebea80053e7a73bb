"""Full attention: prefill attends like decode, and transformers' own attention is its reference."""

from __future__ import annotations

from h2o_export.policies.base import MakeReference, PolicyEntry, Reference
from h2o_runtime.config.prefill import PrefillConfig
from h2o_runtime.policies.prefill.full import Full


class FullEntry(PolicyEntry[Full]):
    policy = Full

    def variants(self, config: PrefillConfig) -> tuple[PrefillConfig, ...]:
        return (config,)

    def reference(self, policy: Full) -> MakeReference:
        return lambda model, sets: Reference("transformers")
