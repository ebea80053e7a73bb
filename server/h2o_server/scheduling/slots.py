"""The slots and the queue before them: first come, first served, among requests that are ready."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from h2o_server.http.problems import Problem, unavailable


class Ticket:
    """A place in the queue, then a slot. Leave it exactly once, however the request ends."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self.ready = False
        self._turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.taken_at = time.monotonic()
        self.left = False

    async def turn(self, timeout: float | None) -> float:
        """Wait for a slot → seconds waited. Raises Problem after `timeout` seconds or when the slots
        close.
        """
        try:
            await asyncio.wait_for(asyncio.shield(self._turn), timeout)
        except asyncio.TimeoutError:  # the built-in one exists only from Python 3.11 on
            raise unavailable(
                f"the request waited {timeout:g} s for its turn: try again later",
                self._slots.retry_after(),
                "queue_timeout",
            ) from None
        return time.monotonic() - self.taken_at

    def prepared(self) -> None:
        """The request is ready; its turn may come from now on."""
        self.ready = True
        self._slots._call_next()

    def refuse(self, error: Exception) -> None:
        """Make `turn` raise `error`, unless its turn has come."""
        if not self._turn.done():
            self._turn.set_exception(error)
            self._turn.exception()  # mark as retrieved: its request may have ended without waiting for it

    def leave(self) -> None:
        """Free the place, or pass its slot to the next in the queue."""
        if not self.left:
            self.left = True
            self._slots._leave(self)

    def _call(self) -> None:
        if not self._turn.done():
            self._turn.set_result(None)


class Slots:
    """Requests being served, and requests that wait. All calls belong to the event loop's thread.

    count  how many are served at once
    freed  called when a slot becomes free, after waiting requests have had their turn
    """

    def __init__(self, most_waiting: int, retry_after: Callable[[], int], count: int = 1) -> None:
        """retry_after: whole seconds until a place is likely to become free."""
        self.count = count
        self.freed: Callable[[], None] = lambda: None
        self._most_waiting = most_waiting
        self.retry_after = retry_after
        self._served: list[Ticket] = []
        self._waiting: deque[Ticket] = deque()
        self._closed: Callable[[], Problem] | None = None

    @property
    def busy(self) -> int:
        """The number of requests being served."""
        return len(self._served)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def check(self) -> None:
        """Raise Problem if no ticket would be issued now."""
        if self._closed is not None:
            raise self._closed()
        if self.busy + self.waiting >= self.count + self._most_waiting:
            at_once = "one request" if self.count == 1 else f"{self.count} requests"
            raise unavailable(
                f"the server answers {at_once} at a time and {self.waiting} are waiting: try again later",
                self.retry_after(),
                "queue_full",
            )

    def enter(self) -> Ticket:
        """Take a ticket. Until it is prepared, later tickets go first.

        Raises Problem if the queue is full or the slots are closed.
        """
        self.check()
        ticket = Ticket(self)
        self._waiting.append(ticket)
        return ticket

    @property
    def wanted(self) -> bool:
        """Whether a ready request waits for a slot."""
        return any(ticket.ready for ticket in self._waiting)

    def spare(self) -> Ticket | None:
        """A slot for one more choice of a request that is being served; None if no slot is free, or a ready request
        waits for it."""
        if self.wanted or self.busy >= self.count:
            return None
        ticket = Ticket(self)
        self._served.append(ticket)
        ticket._call()
        return ticket

    def close(self, problem: Callable[[], Problem]) -> None:
        """Serve nothing after the requests being served; all others get the error from `problem`."""
        self._closed = problem
        for ticket in self._waiting:
            ticket.refuse(problem())
        self._waiting.clear()

    async def empty(self) -> None:
        """Wait until nothing is being served."""
        while self._served:
            await asyncio.sleep(0.02)

    def _call_next(self) -> None:
        """Serve ready requests, as many as there are free slots."""
        for ticket in [ticket for ticket in self._waiting if ticket.ready][: self.count - self.busy]:
            self._waiting.remove(ticket)
            self._served.append(ticket)
            ticket._call()

    def _leave(self, ticket: Ticket) -> None:
        if ticket in self._served:
            self._served.remove(ticket)
            self._call_next()
            self.freed()
        elif ticket in self._waiting:
            self._waiting.remove(ticket)
