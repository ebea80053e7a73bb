"""The contract between a worker process and the system it measures."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Settings = dict[str, Any]

OWN_SYSTEM = "h2o"  # this runtime, in the registry


class System(Protocol):
    """One request at a time, in token ids. Importing its library is done on construction, loading in `open`.

    Raises Absent on construction or in `open` where this machine cannot run it.
    """

    version: str

    def open(self, context: int) -> None:
        """Load the model for at most `context` tokens."""

    def prefill(self, ids: Ids) -> int:
        """Run a whole prompt from an empty cache; returns the likeliest next token, or -1 where there is none."""

    def decode(self, token: int) -> None:
        """Append one token and compute the logits after it."""

    def phases(self) -> dict[str, float]:
        """Seconds of the last prefill by kind of work; empty where the system does not tell."""


@runtime_checkable
class LikelihoodSystem(Protocol):
    """A system that tells how likely it finds a prompt."""

    def prompt_nll(self, ids: Ids) -> float:
        """Mean negative log-likelihood of ids[1:], in nats a token, as the prompt's own prefill reads them."""


class Absent(Exception):  # noqa: N818 - says what is the case, not what went wrong
    """A contestant that cannot take part here, and why, in a sentence for the reader of the results."""


def require_device(torch: Any, device: str) -> None:
    """Raises Absent where this torch cannot compute on `device`."""
    if device == "cuda" and not torch.cuda.is_available():
        raise Absent("this torch has no CUDA: install the build of torch that has")
