"""Threads for work that would block the event loop."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

Result = TypeVar("Result")


class Workers:
    """A few threads for one kind of work: first come, first served."""

    def __init__(self, threads: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(threads, name)
        self._open: set[Future[Any]] = set()
        self._began: dict[int, float] = {}  # of current work
        self._numbers = itertools.count()

    async def run(
        self, work: Callable[[], Result], unwanted: Callable[[Result], object] = lambda result: None
    ) -> Result:
        """The result of `work`. If cancelled, started work continues, and `unwanted` gets its result."""
        future = self.submit(work)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            future.add_done_callback(
                lambda done: None if done.cancelled() or done.exception() else unwanted(done.result())
            )
            raise

    def submit(self, work: Callable[[], Result]) -> Future[Result]:
        """Start `work` without waiting for it."""
        future = self._pool.submit(self._timed, work)
        self._open.add(future)
        future.add_done_callback(self._open.discard)
        return future

    @property
    def silence(self) -> float:
        """Seconds since the oldest running work started; 0 if there is none."""
        now = time.monotonic()
        return max((now - began for began in list(self._began.values())), default=0.0)

    def close(self) -> None:
        """Begin nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def ended(self, timeout: float) -> bool:
        """Wait for started work → whether it ended within `timeout` seconds."""
        return not wait(set(self._open), timeout).not_done

    def _timed(self, work: Callable[[], Result]) -> Result:
        number = next(self._numbers)
        self._began[number] = time.monotonic()
        try:
            return work()
        finally:
            del self._began[number]
