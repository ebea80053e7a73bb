"""Prefill policies, as exporter and comparison know them.

A new policy is a file in this folder and its entry in `POLICIES`. A policy without an entry is exported with
decode's graph only.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from h2o_export.attention_graphs import AttentionGraph, AttentionStep
from h2o_export.attention_graphs.exact import ExactAttention
from h2o_export.policies.entry import PolicyEntry
from h2o_export.policies.h2o import SCORE_ENTRIES
from h2o_export.policies.minference import VerticalSlashEntry
from h2o_export.policies.subquadratic import SubquadraticEntry
from h2o_runtime.attention import AttentionShape
from h2o_runtime.components.registry import load_entry_points
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.policies.prefill import PrefillPolicy

__all__ = ["POLICIES", "PolicyEntries", "PolicyEntry", "model_graphs", "policy_graphs", "policy_steps"]


class PolicyEntries:
    """Entries by their policy's class. Other packages register theirs by entry points in `group`."""

    def __init__(self, *builtin: type[PolicyEntry[Any]], group: str) -> None:
        self._builtin, self._group = builtin, group

    @cached_property
    def _entries(self) -> dict[type, PolicyEntry[Any]]:
        found = {entry.policy: entry() for entry in self._builtin}

        def take(entry: Any) -> None:
            if not (inspect.isclass(entry) and issubclass(entry, PolicyEntry)):
                raise TypeError(f"{entry!r} is no subclass of PolicyEntry")
            if entry.policy in found:
                raise ValueError(f"{entry.policy.__name__} has an entry already")
            found[entry.policy] = entry()

        load_entry_points(self._group, take)
        return found

    def of(self, policy: PrefillPolicy[Any]) -> PolicyEntry[Any]:
        """The entry of the policy's class, or of its nearest base class."""
        kinds = type(policy).__mro__
        return next((self._entries[kind] for kind in kinds if kind in self._entries), PolicyEntry())


POLICIES = PolicyEntries(
    *SCORE_ENTRIES, SubquadraticEntry, VerticalSlashEntry, group="h2o_edge.exported_policies"
)


def policy_steps(policy: PrefillPolicy[Any], windows: Sequence[int] = ()) -> tuple[AttentionStep, ...]:
    """Every attention graph of a bundle with this configuration: the policy's, decode's, one for each window."""
    return (*POLICIES.of(policy).steps(policy), *(ExactAttention(window) for window in (0, *windows)))


def policy_graphs(policy: PrefillPolicy[Any], shape: AttentionShape) -> tuple[AttentionGraph, ...]:
    """The same for models of a shape, without windows."""
    return tuple(step.graph(shape) for step in policy_steps(policy))


def model_graphs(policy: PrefillPolicy[Any], model: ModelSpec) -> tuple[AttentionGraph, ...]:
    """The same for one model."""
    return tuple(step.graph(step.own_shape(model)) for step in policy_steps(policy, model.windows))
