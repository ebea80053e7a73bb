"""What an export takes in memory, told before the hours that it may take."""

from __future__ import annotations

import math
import re
from collections import Counter

from h2o_export.dense.graphs import checkpoint_tensors
from h2o_export.exporter import CALIBRATED, ExportOptions
from h2o_export.plan import Plan
from h2o_runtime.process import warn_of_little_memory

_LAYER = re.compile(r"model\.layers\.\d+\.")
FLOAT_BYTES = 4  # the reference computes in float32, and weights are rounded from it


def work_bytes(plan: Plan, whole_layers: bool) -> int:
    """The largest tensor of the checkpoint in float32, or the largest layer: one is read after the other."""
    elements: Counter[str] = Counter()
    for name, shape in checkpoint_tensors(plan).items():
        layer = _LAYER.match(name) if whole_layers else None
        elements[layer[0] if layer else name] += math.prod(shape)
    return FLOAT_BYTES * max(elements.values())


def warn_of_work(plan: Plan, options: ExportOptions, validate: bool) -> None:
    """Where an export takes more memory than is free. To calibrate and to compare, layers are computed."""
    less = {
        "--no-validate": validate,
        "calibrate=none in --weights": options.weights in CALIBRATED and options.calibrated,
    }
    chosen = [flag for flag, takes in less.items() if takes]
    remedy = f"{' with '.join(chosen)} takes less" if chosen else "end other programs"
    what = "layer" if chosen else "tensor"
    warn_of_little_memory(f"the export takes for one {what}", work_bytes(plan, bool(chosen)), remedy)
