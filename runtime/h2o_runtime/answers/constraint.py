"""Which tokens may come next: the seam between sampling and whatever knows a grammar."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Constraint(Protocol):
    """Follows one answer token by token. Serves one request; not to be shared between threads."""

    def allowed(self) -> NDArray[np.bool_]:
        """bool [vocab]: the tokens that may come next, at least one; valid until the next call.

        Raises ConfigError when the grammar cannot be followed, Cancelled when nobody wants the answer.
        """
        ...

    def accept(self, token: int) -> None:
        """Go on by a token that was allowed. Raises ConfigError when the grammar cannot be followed."""
        ...

    def close(self) -> None:
        """Give back what it holds; the answer is done, or nobody wants it. Any number of times."""
        ...
