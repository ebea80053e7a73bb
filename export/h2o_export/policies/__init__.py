"""Prefill policies by name, as exporter and comparison know them.

To add one is a file beside these and a line in `POLICIES`. A policy without one is exported with decode's graph
alone, and nothing independent of the runtime is there to compare it with.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from h2o_export.attention_graphs import AttentionGraph, AttentionStep
from h2o_export.attention_graphs.decode import Decode
from h2o_export.policies.base import MakeReference, PolicyEntry, Reference
from h2o_export.policies.full import FullEntry
from h2o_export.policies.h2o import H2OEntry
from h2o_export.policies.minference import VerticalSlashEntry
from h2o_export.policies.subquadratic import SubquadraticEntry
from h2o_runtime.attention import AttentionShape
from h2o_runtime.config import PrefillConfig

__all__ = [
    "POLICIES",
    "MakeReference",
    "PolicyEntry",
    "Reference",
    "policy_entry",
    "policy_graphs",
    "policy_steps",
]

POLICIES: Mapping[str, PolicyEntry] = MappingProxyType(
    {
        "h2o": H2OEntry(),
        "full": FullEntry(),
        "subquadratic": SubquadraticEntry(),
        "minference": VerticalSlashEntry(),
    }
)


def policy_entry(config: PrefillConfig) -> PolicyEntry:
    """What is known of a configuration's policy."""
    return POLICIES.get(config.policy, PolicyEntry())


def policy_steps(config: PrefillConfig) -> tuple[AttentionStep, ...]:
    """Every attention graph of a bundle with this configuration: the policy's own, then decode's."""
    return (*policy_entry(config).steps(config), Decode())


def policy_graphs(config: PrefillConfig, shape: AttentionShape) -> tuple[AttentionGraph, ...]:
    """The same for models of a shape."""
    return tuple(step.graph(shape) for step in policy_steps(config))
