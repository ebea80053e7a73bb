"""From a bound port to an orderly end: load, serve, drain."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from typing import Any

import uvicorn

from h2o_runtime.errors import ServerError
from h2o_runtime.policies.prefill import PrefillPolicy
from h2o_runtime.process import STOPPING, resident_bytes, warn_of_little_memory
from h2o_runtime.text_model import TextModel
from h2o_server.app import create_app
from h2o_server.http.problems import shutting_down
from h2o_server.http.protocol import protocol_factory
from h2o_server.http.stream import ClientGone
from h2o_server.request_handler import RequestHandler
from h2o_server.scheduling.inference import InferenceThread
from h2o_server.service import Service
from h2o_server.settings import ServerSettings

log = logging.getLogger(__name__)

LAST_WORDS = 5.0  # seconds for a cancelled request to stop, and for its client to be told

_LOOK = 0.02  # seconds between two checks for requests that have just begun
_SWITCH = 0.0005  # seconds after which a thread that parses a long request yields to the event loop


@dataclass(frozen=True)
class Ended:
    """signal: which one stopped the server; threads: whether all have ended: after False use os._exit"""

    signal: int | None
    threads: bool


def serve(
    settings: ServerSettings, prefill: PrefillPolicy[Any] | None, load: Callable[[], TextModel]
) -> Ended:
    """Serve until a signal stops the server.

    prefill: the policy of requests that name none; None: the model's

    The port is bound before the model is loaded, so that /health answers. Raises ServerError if the port cannot be
    bound, and the errors of `load`.
    """
    with bind(settings.host, settings.port) as listener:
        return asyncio.run(_Run(settings, prefill, load).until_stopped(listener))


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; that of "::" takes IPv4 too. Raises ServerError with the reason."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        both = address[0] == "::" and socket.has_dualstack_ipv6()
        listener = socket.create_server(address, family=family, backlog=2048, dualstack_ipv6=both)
        # Every connection inherits it; asyncio sets it only if the protocol number is explicit. Without it
        # each small write waits 40 ms for the acknowledgement of the previous one.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except UnicodeError as error:
        raise ServerError(
            f"cannot listen on {host}:{port}: {host!r} is not a host name; choose another --host"
        ) from error
    except OSError as error:
        # create_server adds the address to the system's message.
        reason = (error.strerror or str(error)).partition(" (while attempting")[0]
        used = ", or stop the program that uses it" if error.errno == errno.EADDRINUSE else ""
        raise ServerError(
            f"cannot listen on {host}:{port}: {reason}; choose another --host or --port{used}"
        ) from error


class _Server(uvicorn.Server):
    """uvicorn without its own signal handling: running requests must finish first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class _Run:
    """One run of a server, in the event loop."""

    def __init__(
        self, settings: ServerSettings, prefill: PrefillPolicy[Any] | None, load: Callable[[], TextModel]
    ) -> None:
        self._settings = settings
        self._prefill = prefill
        self._load = load
        self._signal: int | None = None
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._drained = False

    async def until_stopped(self, listener: socket.socket) -> Ended:
        sys.setswitchinterval(_SWITCH)
        inference = InferenceThread(self._load, self._settings.prompt_piece)
        service = Service(self._settings, self._prefill, inference)
        server = _Server(self._config(service))
        for number in STOPPING:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as SIGHUP under nohup
                asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        host, port = listener.getsockname()[:2]
        log.info("listening on http://%s:%d", f"[{host}]" if ":" in host else host, port)
        if not ip_address(host.partition("%")[0]).is_loopback and not self._settings.api_keys:
            log.warning(
                "anybody who reaches this address can use the server: require a key with --api-key-file"
            )
        try:
            await self._loading(inference, service)
            await first_of(self._stop.wait(), serving)
            log.info("stopping: running requests have %g s", self._settings.grace)
            service.draining = True
            await drain(service.handler, first_of(self._hurry.wait(), asyncio.sleep(self._settings.grace)))
        finally:
            server.should_exit = True
            await serving
            service.handler.close()
        self._drained = True
        threads = asyncio.to_thread(service.handler.ended, LAST_WORDS)
        ended = await asyncio.gather(asyncio.to_thread(inference.stop, LAST_WORDS), threads)
        return Ended(self._signal, all(ended))

    async def _loading(self, inference: InferenceThread, service: Service) -> None:
        """Wait for the model, or for the request to stop. Raises what loading raised."""
        log.info("loading %s", self._settings.alias)
        inference.start()
        await first_of(inference.loaded, self._stop.wait())
        if not inference.loaded.cancel():  # after a stop nobody awaits it, nor an error
            model = inference.loaded.result()
            generator = model.generator
            service.handler.slots.count = len(model.slots)
            gc.collect()
            gc.freeze()  # the model's objects are permanent and need no repeated garbage collection
            log.info(
                "ready: context %d, attention by %s, %d at once, %d may wait",
                *(generator.context, generator.spec.provider.name),
                *(len(model.slots), self._settings.limits.queue),
            )
            dialect, thinks = model.speech.dialect, model.speech.thinks
            log.info(
                "calls of functions are read as %s (%s), and answers %s with thoughts",
                *(dialect.name, dialect.title, "may begin" if thinks else "do not begin"),
            )
            if generator.spec.device.memory == "cpu":
                warn_of_little_memory(
                    "with whole contexts and a full --cache-pool the server takes",
                    int(service.estimated_bytes()) + generator.pool.most_bytes,
                    'give a smaller --ctx-size or --cache-pool, or --cache "contiguous rows=int8"',
                    held=resident_bytes(),
                )

    def _config(self, service: Service) -> uvicorn.Config:
        return uvicorn.Config(
            create_app(service),
            http=protocol_factory(  # type: ignore[arg-type]
                self._settings.limits.body_timeout, partial(service.metrics.finished, "invalid")
            ),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=int(LAST_WORDS),
        )

    def _on_signal(self, number: int) -> None:
        """Each signal ends a wait: of new requests, of running answers, of conversations that are being written.

        But a terminal that is closed sends SIGHUP several times.
        """
        if not self._stop.is_set():
            self._signal = number
            self._stop.set()
        elif number != signal.SIGHUP:
            if self._drained or self._hurry.is_set():
                os._exit(128 + number)
            self._hurry.set()


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
