"""The exporter's and h2o-compare's view of a prefill policy."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeVar

from h2o_export.attention_graphs import AttentionStep
from h2o_runtime.policies.prefill import PrefillPolicy

ROWS = 512  # of the caches, where graphs are compared
Policy = TypeVar("Policy", bound=PrefillPolicy[Any])


class PolicyEntry(Generic[Policy]):
    """One policy class. The defaults here serve policies without their own entry.

    policy  the class; subclasses without an entry of their own share it
    """

    policy: ClassVar[type[PrefillPolicy[Any]]]

    def steps(self, policy: Policy) -> tuple[AttentionStep, ...]:
        """The attention graphs that it needs besides decode's."""
        return ()

    def rows(self, policy: Policy) -> int:
        """Rows of the caches: few, but enough to show errors of its graphs."""
        return ROWS
