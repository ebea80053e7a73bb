"""What a model says of each token, from its logits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def log_probabilities(logits: NDArray[Any]) -> NDArray[np.float64]:
    """Log-softmax of each row: [rows, vocab] → float64 [rows, vocab]."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return wide
