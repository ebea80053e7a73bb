"""This process's memory and cores, as the operating system reports them, and its exit."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import logging
import math
import os
import resource
import signal
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

from h2o_runtime.control_groups import core_quota, memory_room
from h2o_runtime.errors import ConfigError

log = logging.getLogger(__name__)

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # Ctrl-C, `kill`, a closed terminal: end in order
THREADS_A_CORE = 4  # more threads only wait for each other, and each ONNX Runtime session has its own threads

_STATUS = Path("/proc/self/status")
_MEMORY = Path("/proc/meminfo")


def peak_bytes() -> int:
    """Peak resident memory of this process, including pages of mapped files."""
    found = _status("VmHWM")
    if found is not None:
        return found
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def resident_bytes() -> int:
    """Current resident memory; the peak if the system does not report it."""
    return _status("VmRSS") or peak_bytes()


def available_bytes() -> int | None:
    """Memory that the system could provide without swapping, within a container's limit; None if it does not report
    this."""
    rooms = (_field(_MEMORY, "MemAvailable"), memory_room())
    return min((room for room in rooms if room is not None), default=None)


def warn_of_little_memory(work: str, wanted: int, remedy: str, held: int = 0) -> None:
    """Warn where `work` takes more than this process could have: a process that the system ends for its memory can
    say nothing then. held: bytes of `wanted` that the process has.
    """
    free = available_bytes()
    if free is not None and wanted > held + free:
        log.warning(
            "%s %d MiB and %d MiB of memory can be had: the system may end this process; %s",
            work,
            wanted >> 20,
            (held + free) >> 20,
            remedy,
        )


def give_back_memory() -> None:
    """Return the C library's freed memory to the system, because other processes on a small device need it.

    Otherwise a long request, freed in small blocks, leaves the process larger until it ends. Takes about a
    millisecond.
    """
    with contextlib.suppress(OSError, AttributeError):  # not every C library has it
        ctypes.CDLL(None).malloc_trim(0)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Garbage is not looked for meanwhile, nor afterwards among the objects that are there at the end.

    Libraries and traced graphs are a million objects that stay. To look at them again and again takes a tenth of
    an export.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.freeze()
            gc.enable()
            atexit.register(gc.unfreeze)  # or nanobind reports leaks


def default_threads() -> int:
    """Cores that this process may use; with a container's quota, as many as it can keep busy."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = core_quota()
    return cores if quota is None else min(cores, math.ceil(quota))


def check_threads(threads: int | None) -> None:
    """Raises ConfigError for more threads than this machine could ever use."""
    if threads is None:
        return
    if threads < 1:
        raise ConfigError(f"threads must be at least 1, but is {threads}", field="threads")
    cores = default_threads()
    if threads > THREADS_A_CORE * cores:
        raise ConfigError(
            f"threads must be at most the {THREADS_A_CORE * cores} that the {cores} cores of this process can use, "
            f"but is {threads}",
            field="threads",
        )


def let_go_at_exit(owner: object) -> None:
    """Make `owner` drop its attributes if the program ends while threads run.

    Python stops a daemon thread at any point. Objects in its frames are never freed, and nanobind reports native
    objects among them as leaks after the interpreter has ended. Without such threads this has no effect.
    """
    end = functools.partial(_let_go, weakref.ref(owner))
    atexit.register(end)
    weakref.finalize(owner, atexit.unregister, end).atexit = False


def _let_go(reference: weakref.ref[object]) -> None:
    owner = reference()
    if owner is not None and threading.active_count() > 1:
        vars(owner).clear()


def _status(field: str) -> int | None:
    return _field(_STATUS, field)


def _field(file: Path, field: str) -> int | None:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return None
