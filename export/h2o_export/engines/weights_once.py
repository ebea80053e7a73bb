"""Whether a plan holds its weights once.

Each optimization profile may select kernels that need a matrix in their own layout; the plan then holds the
matrix twice. On a small device weights take most of the memory. There a second copy costs more than kernels
tuned for one row gain.
"""

from __future__ import annotations

from pathlib import Path

from h2o_runtime.bundles.onnx_model import read_model

KERNELS = 2_000_000  # bytes: the most that the plan of a layer holds besides weights, with two profiles


def stored_bytes(model: Path) -> int:
    """Bytes on disk of the weights of the graph at `model`."""
    graph = read_model(model).graph
    entries = (entry for tensor in graph.initializer for entry in tensor.external_data)
    return sum(int(entry.value) for entry in entries if entry.key == "length")


def may_hold_copies(plan: int, stored: int) -> bool:
    """Whether a plan of `plan` bytes is large enough for a second copy of at least half the weights."""
    return plan > 1.5 * stored + KERNELS


def saves_copies(single: int, plan: int, stored: int) -> bool:
    """Whether a plan of `single` bytes with one profile saves at least half the weights compared with
    `plan`.
    """
    return plan - single > 0.5 * stored
