"""What every score rule's entry shares."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

from h2o_export.attention_graphs import AttentionStep
from h2o_export.policies.entry import PolicyEntry
from h2o_export.policies.h2o.steps import Phase1
from h2o_runtime.policies.prefill.h2o import H2O

Rule = TypeVar("Rule", bound=H2O[Any])


class ScoreEntry(PolicyEntry[Rule]):
    """A score rule's entry: its Phase 2 as a graph."""

    phase2: ClassVar[type[Any]]  # an AttentionStep of the policy

    def steps(self, policy: Rule) -> tuple[AttentionStep, ...]:
        return Phase1(policy), self.phase2(policy)

    def rows(self, policy: Rule) -> int:
        """Two chunks: the second one has a memory set."""
        return 2 * policy.chunk_size
