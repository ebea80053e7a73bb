"""How a caller follows work on a prompt, and stops it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from h2o_runtime.errors import Cancelled


@dataclass(frozen=True)
class Watch:
    """How the caller follows a prefill and stops it.

    progress  called with (done, total) in prompt tokens of work
    cancelled asked at every dense tile, in every logical batch of attention, at every token; true raises Cancelled
    """

    progress: Callable[[int, int], None] = lambda done, total: None
    cancelled: Callable[[], bool] = lambda: False

    def checkpoint(self, n: int) -> Callable[[float], None]:
        """A function to call with the finished share of `n` tokens' work, from 0 to 1. Raises Cancelled.

        A layer's dense graphs and attention may alternate; the reported share never decreases.
        """
        done = 0

        def check(share: float) -> None:
            nonlocal done
            if self.cancelled():
                raise Cancelled("prefill was stopped")
            done = max(done, int(share * n))
            self.progress(done, n)

        return check
