"""The one slot and the queue before it: first come, first served, of those that are ready to be."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType

from h2o_runtime.server.problems import Problem, unavailable


class Ticket:
    """A place in the queue, then the slot itself. Leave it exactly once, in any way the request ends."""

    def __init__(self, slot: Slot, ready: bool) -> None:
        self._slot = slot
        self.ready = ready
        self._turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.taken_at = time.monotonic()
        self.left = False

    async def turn(self, timeout: float | None) -> float:
        """Wait for the slot → seconds waited. Raises Problem after `timeout` seconds or when the slot closes."""
        try:
            await asyncio.wait_for(asyncio.shield(self._turn), timeout)
        except asyncio.TimeoutError:  # the built-in one only from Python 3.11 on
            raise unavailable(
                f"the request waited {timeout:g} s for its turn: try again later",
                self._slot.retry_after(),
                "queue_timeout",
            ) from None
        return time.monotonic() - self.taken_at

    def prepared(self) -> None:
        """From now on it may be this ticket's turn."""
        self.ready = True
        self._slot._call_next()

    def refuse(self, error: Exception) -> None:
        """Let `turn` raise `error`, unless its turn has come."""
        if not self._turn.done():
            self._turn.set_exception(error)
            self._turn.exception()  # seen: its request may have ended without ever waiting for it

    def leave(self) -> None:
        """Free the place, or hand the slot to the next in the queue."""
        if not self.left:
            self.left = True
            self._slot._leave(self)

    def __enter__(self) -> Ticket:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def _call(self) -> None:
        if not self._turn.done():
            self._turn.set_result(None)


class Slot:
    """Who is served and who waits. All calls belong to the event loop's thread."""

    def __init__(self, most_waiting: int, retry_after: Callable[[], int]) -> None:
        """retry_after: whole seconds until a place is likely to get free."""
        self._most_waiting = most_waiting
        self.retry_after = retry_after
        self._holder: Ticket | None = None
        self._waiting: deque[Ticket] = deque()
        self._closed: Callable[[], Problem] | None = None

    @property
    def busy(self) -> bool:
        return self._holder is not None

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def check(self) -> None:
        """Raise Problem when no ticket would be given out now."""
        if self._closed is not None:
            raise self._closed()
        if self.busy + len(self._waiting) > self._most_waiting:
            raise unavailable(
                f"the server answers one request at a time and {len(self._waiting)} are waiting: try again later",
                self.retry_after(),
                "queue_full",
            )

    def enter(self, ready: bool = True) -> Ticket:
        """Take a ticket. Raises Problem when the queue is full or the slot closed.

        ready: whether it could be served at once; until it is, those behind it go first.
        """
        self.check()
        ticket = Ticket(self, ready)
        self._waiting.append(ticket)
        self._call_next()
        return ticket

    def close(self, problem: Callable[[], Problem]) -> None:
        """Serve nobody any more but who is being served; all others are told what `problem` makes."""
        self._closed = problem
        for ticket in self._waiting:
            ticket.refuse(problem())
        self._waiting.clear()

    async def empty(self) -> None:
        """Wait until nobody is being served."""
        while self._holder is not None:
            await asyncio.sleep(0.02)

    def _call_next(self) -> None:
        following = next((ticket for ticket in self._waiting if ticket.ready), None)
        if self._holder is None and following is not None:
            self._waiting.remove(following)
            self._holder = following
            following._call()

    def _leave(self, ticket: Ticket) -> None:
        if self._holder is not ticket:
            if ticket in self._waiting:
                self._waiting.remove(ticket)
            return
        self._holder = None
        self._call_next()
