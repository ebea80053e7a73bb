"""What a comparison with the checkpoint takes in memory, told before the hours that an export may take."""

from __future__ import annotations

import logging
import math
import re
from collections import Counter

from h2o_export.architecture.config import ModelConfig
from h2o_export.dense.graphs import checkpoint_tensors
from h2o_runtime.process import available_bytes

log = logging.getLogger(__name__)

_LAYER = re.compile(r"model\.layers\.\d+\.")
FLOAT_BYTES = 4  # the reference computes in float32


def validation_bytes(config: ModelConfig) -> int:
    """The largest layer, or other tensor, of the checkpoint in float32: the reference reads one after the other."""
    elements: Counter[str] = Counter()
    for name, shape in checkpoint_tensors(config).items():
        layer = _LAYER.match(name)
        elements[layer[0] if layer else name] += math.prod(shape)
    return FLOAT_BYTES * max(elements.values())


def warn_of_little_memory(config: ModelConfig) -> None:
    """A process that the system ends for its memory can say nothing then."""
    free, wanted = available_bytes(), validation_bytes(config)
    if free is not None and wanted > free:
        log.warning(
            "comparing the bundle takes %d MiB for one layer and %d MiB of memory are free: the system may end "
            "this process; --no-validate exports without it",
            wanted >> 20,
            free >> 20,
        )
