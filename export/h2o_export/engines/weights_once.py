"""Whether a plan holds its weights once.

Each optimization profile may bring kernels that want a matrix in a layout of their own, and a plan then holds it in
both. On a small device weights are most of what memory holds, so a second copy of them costs more than kernels that
are tuned for one row gain.
"""

from __future__ import annotations

from pathlib import Path

import onnx

KERNELS = 2_000_000  # bytes: what the plan of a layer holds besides weights, at most, with two profiles


def stored_bytes(model: Path) -> int:
    """What the weights of the graph at `model` take on disk."""
    graph = onnx.load(str(model), load_external_data=False).graph
    entries = (entry for tensor in graph.initializer for entry in tensor.external_data)
    return sum(int(entry.value) for entry in entries if entry.key == "length")


def may_hold_copies(plan: int, stored: int) -> bool:
    """Whether a plan of `plan` bytes has room for a second copy of half the weights or more."""
    return plan > 1.5 * stored + KERNELS


def saves_copies(single: int, plan: int, stored: int) -> bool:
    """Whether a plan with a single profile of `single` bytes has half the weights less than `plan`."""
    return plan - single > 0.5 * stored
