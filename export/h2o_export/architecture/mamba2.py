"""Sizes of Mamba-2's layers (Dao and Gu, 2024), as `config.json` has them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from h2o_export.architecture.kind_sizes import KindSizes
from h2o_export.architecture.values import integer
from h2o_runtime.errors import CheckpointError, UnsupportedModelError

MODULE = "mamba."  # in the names of such a layer's modules
# The projection of the files, and what it is here: the gate, the convolution's inputs, and the steps.
IN_PROJ = ("mamba.in_proj", ("mamba.in_proj_gate", "mamba.in_proj_mixed", "mamba.in_proj_dt"))
STATE_UNIT, VALUE_UNIT = 8, 4  # what kernels want the sizes of a head's state to be multiples of
UNLIMITED = 1e9  # of a step: as good as infinite


@dataclass(frozen=True)
class Mamba2Config(KindSizes):
    """Every head has a state of its own; neighbouring heads of a group share what is written and read.

    state_size  of what a token writes to and reads from a head's state by
    kernel      inputs that the convolution sees, a token's own among them
    conv_bias   whether the convolution has a bias
    bias        whether the projections have biases
    """

    heads_of_state: int
    groups: int
    state_size: int
    value_size: int
    kernel: int
    conv_bias: bool
    bias: bool

    @classmethod
    def read(cls, raw: dict[str, Any], keys: Mapping[str, str], value_size: int) -> Mamba2Config:
        """Of a parsed `config.json`, whose words for the first five fields but `value_size`, and for the flags, are
        `keys`. Raises CheckpointError and UnsupportedModelError.
        """
        sizes = cls(
            heads_of_state=integer(raw, keys["heads_of_state"]),
            groups=integer(raw, keys["groups"]),
            state_size=integer(raw, keys["state_size"]),
            value_size=value_size,
            kernel=integer(raw, keys["kernel"], least=2),
            conv_bias=bool(raw[keys["conv_bias"]]),
            bias=bool(raw[keys["bias"]]),
        )
        if sizes.heads_of_state % sizes.groups:
            raise CheckpointError(
                f"config.json: {keys['heads_of_state']} ({sizes.heads_of_state}) is no multiple of "
                f"{keys['groups']} ({sizes.groups}); the file is damaged"
            )
        if sizes.state_size % STATE_UNIT or value_size % VALUE_UNIT:
            raise UnsupportedModelError(
                f"states of {sizes.state_size} times {value_size} elements in layers of Mamba-2 are not supported: "
                f"the sizes must be multiples of {STATE_UNIT} and {VALUE_UNIT}"
            )
        _check_limit(raw["time_step_limit"])
        return sizes

    @property
    def values(self) -> int:
        """Elements of all heads of a token."""
        return self.heads_of_state * self.value_size

    @property
    def shared(self) -> int:
        """Elements that a token writes by, of all groups; and as many that it reads by."""
        return self.groups * self.state_size

    @property
    def channels(self) -> int:
        """Of the convolution."""
        return self.values + 2 * self.shared

    def module_rows(self, module: str) -> int | None:
        if MODULE not in module:
            return None
        sizes = {
            "in_proj_gate": self.values,
            "in_proj_mixed": self.channels,
            "in_proj_dt": self.heads_of_state,
        }
        return sizes[module.rpartition(".")[2]]


def _check_limit(limit: Any) -> None:
    """transformers applies limits of steps in prompts and not in later tokens."""
    ends = [_number(end) for end in limit] if isinstance(limit, list | tuple) else []
    if len(ends) != 2 or None in ends:
        raise CheckpointError(f"config.json: time_step_limit must be two numbers, but is {limit!r}")
    low, high = ends
    if low > 0 or not high >= UNLIMITED:
        raise UnsupportedModelError(f"limited steps (time_step_limit = {limit!r}) are not supported")


def _number(end: Any) -> Any:
    """As JSON has it, which knows no infinity; None: it is no number."""
    if isinstance(end, dict):
        return math.inf if end == {"__float__": "Infinity"} else None
    return end if isinstance(end, int | float) else None
