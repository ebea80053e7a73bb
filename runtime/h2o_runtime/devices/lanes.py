"""The two streams that a GPU's work goes down, and the order between them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from h2o_plugins._cuda import Event, Stream


class Lanes:
    """`dense` is for dense graphs, `attention` for attention and all that belongs to it.

    Attention is a chain of small launches, beside dense graphs that fill the GPU: so it goes first.
    """

    def __init__(self, module: ModuleType) -> None:
        self.module = module
        self.dense: Stream = module.Stream()
        self.attention: Stream = module.Stream(urgent=True)
        self._mark: Event = module.Event()

    def join(self) -> None:
        """Each lane goes on only when both are done with what they have now."""
        self.order(self.dense, self.attention)
        self.order(self.attention, self.dense)

    def order(self, first: Stream, second: Stream) -> None:
        """What `second` gets from now on comes after what `first` has so far."""
        self._mark.record(first)
        second.wait(self._mark)

    @contextmanager
    def one(self) -> Iterator[None]:
        """All work goes down the dense lane: where nothing can overlap, and where it is recorded."""
        attention = self.attention
        self.attention = self.dense
        try:
            yield
        finally:
            self.attention = attention

    def synchronize(self) -> None:
        """Wait until both are done."""
        self.dense.synchronize()
        self.attention.synchronize()
