"""Room for the rows of several slots in the blocks of memory that they share.

The oldest run continues first, with room for the rest of its prompt. If blocks run short, conversations without
a run free their blocks: first the waiting ones, then those in free slots. Then later runs pause until there is
room again. Only for the oldest run, rows of other runs are moved out, those of the newest run first. So the
oldest run always ends. Rows are moved back when blocks are free. No run is lost, refused or computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from h2o_runtime.generator import Generator
from h2o_server.scheduling.running import Running


class BlockRoom:
    """The scheduler asks it in each turn, before any run writes rows."""

    def __init__(self, generators: Sequence[Generator]) -> None:
        self._generators = generators
        self._store, self._pool = generators[0].session.store, generators[0].pool
        self._shared = len(generators) > 1 and self._store.in_blocks

    def fitting(self, holders: Sequence[Running]) -> Iterator[Running]:
        """The runs that can continue, with their rows in place. holders: all runs, the oldest first."""
        promised = 0
        for holder in holders:
            if self._shared:
                if not self._make(promised + holder.missing_blocks(), holder, holders):
                    return
                holder.generator.session.store.move_in()
                promised += holder.missing_blocks()
            yield holder

    def fits(self, holder: Running) -> bool:
        """Whether the missing blocks of the run are free."""
        return not self._shared or holder.missing_blocks() <= self._store.free_blocks()

    def _make(self, blocks: int, holder: Running, holders: Sequence[Running]) -> bool:
        """Free blocks until there are so many → whether there are."""
        ways = self._ways(holder, holders)
        while self._store.free_blocks() < blocks:
            if (give := next(ways, None)) is None:
                return False
            give()
        return True

    def _ways(self, holder: Running, holders: Sequence[Running]) -> Iterator[Callable[[], object]]:
        """Ways to free blocks, the cheapest first."""
        while len(self._pool):
            yield self._pool.give_up_session
        busy = [holder.generator for holder in holders]
        for generator in self._generators:
            if generator not in busy and generator.length:
                yield lambda: self._clear(generator)  # noqa: B023 - called before the next
        while self._pool.prompts:
            yield self._pool.give_up_prompt
        if holder is not holders[0]:
            return
        if not holder.begun:
            yield lambda: self._clear(holder.generator)
        for later in reversed(holders[1:]):
            if later.begun and not later.generator.session.store.moved:
                yield later.generator.session.store.move_out
            elif not later.begun and later.generator.length:
                yield lambda: self._clear(later.generator)  # noqa: B023

    def _clear(self, generator: Generator) -> None:
        """Empty a slot; its conversation goes to the folder, if there is one."""
        self._pool.set_aside(generator.session)
        generator.reset()
        while len(self._pool):
            self._pool.give_up_session()
