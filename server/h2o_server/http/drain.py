"""The end of a server: new requests are refused, running ones are finished, or stopped when time is up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable

from h2o_server.http.problems import shutting_down
from h2o_server.http.stream import ClientGone
from h2o_server.request_handler import RequestHandler

log = logging.getLogger(__name__)

LAST_WORDS = 5.0  # seconds for a cancelled request to stop, and for its client to be told

_LOOK = 0.02  # seconds between two checks for requests that have just begun


async def drain(handler: RequestHandler, enough: Awaitable[object]) -> None:
    """Refuse new requests, finish those being served, and stop what still runs when `enough` is done.

    A request is served with all its choices. Returns when nothing is served any more, or when the inference
    thread does not come back.
    """
    handler.slots.close(shutting_down)
    await first_of(handler.slots.empty(), enough)
    for jobs in handler.answers:
        log.warning("stopping %s before its end", jobs.name)
    clock = asyncio.get_running_loop()
    end = clock.time() + LAST_WORDS
    while handler.slots.busy and clock.time() < end:
        for jobs in handler.answers:  # again each time, because a request may begin meanwhile
            jobs.cancel()
        await asyncio.sleep(_LOOK)
    if handler.answers:
        log.error("the inference thread does not stop: the server ends without it")
    for jobs in handler.answers:
        jobs.give_up(ClientGone())  # a client that still listens learns that the server shuts down


async def first_of(*works: Awaitable[object]) -> None:
    """Wait until one is done, and cancel those that were created for this wait only."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task, work in zip(tasks, works, strict=True):
            if task is not work:
                task.cancel()
