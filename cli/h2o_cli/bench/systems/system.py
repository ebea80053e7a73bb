"""The interface between a worker process and the system that it measures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Settings = dict[str, Any]

OWN_SYSTEM = "h2o"  # the registry name of this runtime


class System(ABC):
    """One request at a time, in token ids. The library is imported on construction; `open` loads the model.

    Raises Absent on construction or in `open` if this machine cannot run it.
    """

    version: str

    @abstractmethod
    def open(self, context: int) -> None:
        """Load the model for at most `context` tokens."""

    @abstractmethod
    def prefill(self, ids: Ids) -> int:
        """Run a whole prompt from an empty cache; returns the most likely next token, or -1 if there is
        none.
        """

    @abstractmethod
    def decode(self, token: int) -> None:
        """Append one token and compute the logits after it."""

    def phases(self) -> dict[str, float]:
        """Seconds of the last prefill by phase; empty if the system does not report them."""
        return {}


class Absent(Exception):  # noqa: N818 - says what is the case, not what went wrong
    """A contestant that cannot take part here, with the reason as a sentence."""


def require_device(torch: Any, device: str) -> None:
    """Raises Absent if this torch cannot compute on `device`."""
    if device == "cuda" and not torch.cuda.is_available():
        raise Absent("this torch has no CUDA: install the build of torch that has")
