"""The two streams of a GPU's work, and the order between them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from h2o_plugins._cuda import Event, Stream


class Lanes:
    """`dense` is for dense graphs, `attention` for attention and related work.

    Attention is a chain of small launches beside dense graphs that fill the GPU, so it has the higher
    priority.
    """

    def __init__(self, module: ModuleType) -> None:
        self.module = module
        self.dense: Stream = module.Stream()
        self.attention: Stream = module.Stream(urgent=True)
        self._mark: Event = module.Event()

    def join(self) -> None:
        """Each lane continues only when both have finished their current work."""
        self.order(self.dense, self.attention)
        self.order(self.attention, self.dense)

    def order(self, first: Stream, second: Stream) -> None:
        """Later work on `second` waits for the work so far on `first`."""
        self._mark.record(first)
        second.wait(self._mark)

    @contextmanager
    def one(self) -> Iterator[None]:
        """All work uses the dense lane: if nothing can overlap, and while recording."""
        attention = self.attention
        self.attention = self.dense
        try:
            yield
        finally:
            self.attention = attention

    def synchronize(self) -> None:
        """Wait until both lanes are idle."""
        self.dense.synchronize()
        self.attention.synchronize()
