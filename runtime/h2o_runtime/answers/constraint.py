"""Which tokens may come next: the interface between sampling and grammars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Constraint(Protocol):
    """Follows one answer token by token. Serves one request; threads must not share it."""

    def allowed(self) -> NDArray[np.bool_]:
        """bool [vocab]: the tokens that may come next, at least one; valid until the next call.

        Raises ConfigError if the grammar cannot be followed, Cancelled if the answer is no longer wanted.
        """
        ...

    def forced(self) -> Sequence[int]:
        """Tokens of which each is the only one allowed when its turn comes, in order; some or none of those
        that there are. Valid until the next call.

        Raises as `allowed`.
        """
        ...

    def fitting(self, draft: Sequence[int]) -> int:
        """How many tokens of a draft, from the first on, may come next, in order. Raises as `allowed`."""
        ...

    def accept(self, token: int) -> None:
        """Continue with an allowed token. Raises ConfigError if the grammar cannot be followed."""
        ...

    def close(self) -> None:
        """Free its resources, when the answer is done or no longer wanted. May be called repeatedly."""
        ...
