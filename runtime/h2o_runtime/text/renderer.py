"""Renders templates in a process that the operating system ends if it exceeds its limits."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from h2o_runtime.errors import BackendError
from h2o_runtime.killable import Killable
from h2o_runtime.text.render_process import DONE, MEMORY, SECONDS

SCRIPT = Path(__file__).with_name("render_process.py")
PATIENCE = 60.0  # seconds for an answer, even on a very busy machine


class TemplateError(Exception):
    """kind  a letter of `render_process`, or ENDED if the process reached its limits"""

    ENDED = b"e"

    def __init__(self, kind: bytes, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Renderer:
    """Compiled templates by name. Any thread may render; renderings run one after the other."""

    def __init__(self, templates: Mapping[str, str], seconds: int = SECONDS) -> None:
        """seconds  of processor time per rendering

        Raises TemplateError for a template that cannot be compiled, BackendError without a process.
        """
        self._templates = dict(templates)
        self._seconds = seconds
        self._lock = threading.Lock()
        self._worker: _Worker | None = _Worker(self._templates, seconds)

    def render(self, name: str, names: Mapping[str, Any]) -> str:
        """The text of template `name` with the variables `names`. Raises TemplateError."""
        with self._lock:
            worker = self._worker or _Worker(self._templates, self._seconds)
            self._worker = None  # cleared until the process has survived
            try:
                text = worker.ask((name, dict(names)))
            except TemplateError as error:
                if error.kind != TemplateError.ENDED:
                    self._worker = worker
                raise
            self._worker = worker
            return text

    def close(self) -> None:
        """End the process; a later rendering starts another."""
        with self._lock:
            if self._worker is not None:
                self._worker.end()
            self._worker = None


class _Worker:
    def __init__(self, templates: dict[str, str], seconds: int) -> None:
        self._seconds = seconds
        try:
            process = Killable(SCRIPT, quiet=True, patience=0, seconds=seconds)
        except OSError as error:
            raise BackendError(
                f"no process could be started for the chat template: {error.strerror}"
            ) from error
        self._process, self.end = process, process.end
        self._connection = Connection(process.socket.detach())
        self.ask(templates)

    def ask(self, request: Any) -> str:
        try:
            self._connection.send_bytes(pickle.dumps(request))
            answer = self._connection.recv_bytes() if self._connection.poll(PATIENCE) else b""
        except (EOFError, OSError):
            answer = b""
        if not answer:
            self.end()
            limit = f"{self._seconds} s of processor time or {MEMORY >> 20} MiB"
            raise TemplateError(TemplateError.ENDED, f"takes more than {limit}")
        kind, text = answer[:1], answer[1:].decode("utf-8", "surrogatepass")
        if kind != DONE:
            raise TemplateError(kind, text)
        return text
