"""What exporter and comparison know of a prefill policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from h2o_export.attention_graphs import AttentionStep
from h2o_export.reference import Attention
from h2o_runtime.config import PrefillConfig

EXACT = PrefillConfig(policy="full")  # what every policy approximates
ROWS = 512  # of the caches, where graphs are compared


@dataclass(frozen=True)
class Verdict:
    """What a reference says besides its numbers."""

    sound: bool = True
    note: str = ""


@dataclass(frozen=True)
class Reference:
    """A policy computed by another route than the runtime's, inside transformers' layers. Serves one prompt.

    name       in tables
    attention  takes the place of transformers' own attention; None leaves that, which sees everything
    verdict    asked when all layers have run
    """

    name: str
    attention: Attention | None = None
    verdict: Callable[[], Verdict] = Verdict


# From the number of key/value heads and the memory sets, int32 [layers, boundaries, Hs, M], of the run that is
# compared: a reference may adopt them where the rule leaves a choice.
MakeReference = Callable[[int, NDArray[np.int32]], Reference]


class PolicyEntry:
    """One policy, by its configurations. What stands here serves a policy that has no file of its own."""

    def steps(self, config: PrefillConfig) -> tuple[AttentionStep, ...]:
        """The attention graphs that it needs besides decode's."""
        return ()

    def rows(self, config: PrefillConfig) -> int:
        """Rows of the caches, as few as tell the errors of its graphs."""
        return ROWS

    def describe(self, config: PrefillConfig) -> str:
        """A short name for tables."""
        return config.algorithm.name

    def variants(self, config: PrefillConfig) -> tuple[PrefillConfig, ...]:
        """What is compared where this configuration is asked for: the exact policy first."""
        return EXACT, config

    def reference(self, config: PrefillConfig) -> MakeReference | None:
        """How to make the independent computation of the policy; None where there is none."""
        return None
