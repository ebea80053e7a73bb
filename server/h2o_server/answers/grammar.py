"""Answers that follow a grammar by construction: llguidance computes the allowed tokens after each token."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import socket
import struct
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.answers.dialects.lark import COMPACT
from h2o_runtime.errors import BackendError, Cancelled, ConfigError
from h2o_runtime.killable import Killable
from h2o_server.answers import grammar_process as process

__all__ = ["Grammar", "GrammarCompiler", "UnfollowableError"]

log = logging.getLogger(__name__)

_LOOK = 0.05  # seconds between two checks whether the answer is still wanted
_LONGEST = 30.0  # seconds for one step, even on a busy machine
_LONGEST_START = 120.0  # seconds to read a large tokenizer

# A killed process does not say which limit it exceeded.
_TOO_MUCH = f"it takes more than {process.SECONDS} s, {process.MEMORY >> 20} MiB or 2,000 rules at a time"

# llguidance's wording that we translate, by its beginning.
_REASONS = {
    "NoExtensionBias": "no answer fits it: it consists of itself",
    "circular references": "it refers to itself, without an object or list between",
    "Regex is empty": "no text fits it",
    "anyOf is empty": "it allows no value",
    "Parser Error: Current row": "",
}

IsCancelled = Callable[[], bool]


class UnfollowableError(ConfigError):
    """No answer can follow a grammar. reason: why; empty: that would take too long or too much memory."""

    def __init__(self, message: str, *, field: str, reason: str) -> None:
        super().__init__(message, field=field)
        self.reason = reason


class GrammarCompiler:
    """Makes grammars for one bundle's tokenizer, which is read on first use. Any thread may use it."""

    def __init__(self, tokenizer: Path, vocab_size: int, end_ids: Collection[int]) -> None:
        """tokenizer: the bundle's file. vocab_size: the model's. end_ids: tokens that may follow a whole answer."""
        self._file = tokenizer
        self._vocab_size = vocab_size
        self._end_ids = sorted(end_ids)
        self._lock = threading.Lock()
        self._fork_server: _ForkServer | None = None

    def json_schema(
        self, schema: Mapping[str, Any], *, field: str, cancelled: IsCancelled = lambda: False
    ) -> Grammar:
        """Answers that are one JSON value of `schema`; the caller closes the constraint.

        cancelled: whether the answer is no longer wanted; called from the waiting thread as long as the
        grammar lives. Raises ConfigError with `field`, Cancelled, BackendError.
        """
        return self._grammar(process.JSON_SCHEMA, json.dumps(schema), "a JSON schema", field, cancelled)

    def gbnf(self, text: str, *, field: str, cancelled: IsCancelled = lambda: False) -> Grammar:
        """Answers that follow a grammar in llama.cpp's notation. Otherwise as `json_schema`."""
        return self._grammar(process.GBNF, text, "a GBNF grammar", field, cancelled)

    def lark(self, text: str, *, field: str, cancelled: IsCancelled = lambda: False) -> Grammar:
        """Answers that follow a grammar in llguidance's own notation. Otherwise as `json_schema`."""
        return self._grammar(process.LARK, text, "a JSON schema", field, cancelled)

    def _grammar(self, kind: bytes, source: str, title: str, field: str, cancelled: IsCancelled) -> Grammar:
        if not self._end_ids:
            raise ConfigError(
                f"{field} cannot be honoured: this model has no token that ends an answer", field=field
            )
        grammar = Grammar(self._started().child(), self._vocab_size, title, field, cancelled)
        try:
            grammar.compile(kind + source.encode())
        except BaseException:
            grammar.close()
            raise
        return grammar

    def token_bytes(self, token: int) -> bytes:
        """The token's bytes, which may be an incomplete character. Raises BackendError."""
        return bytes(self._tokenizer.decode_bytes([token]))

    def close(self) -> None:
        """End all processes, including those of grammars in use."""
        with self._lock:
            if self._fork_server is not None:
                self._fork_server.close()

    def _started(self) -> _ForkServer:
        with self._lock:
            if self._fork_server is None or not self._fork_server.alive:
                _library()
                self._fork_server = _ForkServer(self._file, self._vocab_size, self._end_ids)
            return self._fork_server

    @cached_property
    def _tokenizer(self) -> Any:
        text = self._file.read_text(encoding="utf-8")
        try:
            return _library().LLTokenizer(text, n_vocab=self._vocab_size, eos_token=self._end_ids or None)
        except Exception as error:  # the library raises plain ValueError and RuntimeError
            raise _unusable(error) from error


class Grammar:
    """A `Constraint` with its own process. Raises ConfigError with `field`; `title` names the grammar in the
    message.
    """

    def __init__(
        self, child: _Child, vocab_size: int, title: str, field: str, cancelled: IsCancelled
    ) -> None:
        self._child = child
        self._title = title
        self._vocab_size = vocab_size
        self._field = field
        self._cancelled = cancelled
        # What the process says next, None until it is read.
        self._forced: list[int] | None = None
        self._mask: NDArray[np.bool_] | None = None  # behind the forced tokens
        self._only = np.zeros(vocab_size, np.bool_)  # the mask of a forced token

    def compile(self, source: bytes) -> None:
        """Checked first. A schema without a valid answer compiles, so the first mask is requested here."""
        self._send(source)
        self.allowed()

    def allowed(self) -> NDArray[np.bool_]:
        forced = self.forced()
        if forced:
            self._only.fill(False)
            self._only[forced[0]] = True
            return self._only
        return self._mask_behind_forced()

    def forced(self) -> Sequence[int]:
        if self._forced is None:
            self._forced = np.frombuffer(self._received(process.FORCED), np.int64).tolist()
        return self._forced

    def fitting(self, draft: Sequence[int]) -> int:
        """The process is asked only about tokens behind the forced ones, of which the mask allows the first."""
        forced = self.forced()
        for place, (token, only) in enumerate(zip(draft, forced, strict=False)):
            if token != only:
                return place
        rest = draft[len(forced) :]
        if not rest:
            return len(draft)
        if not self._mask_behind_forced()[rest[0]]:
            return len(forced)
        self._send(process.DRAFT + process.packed(rest))
        (fitting,) = process.INTEGER.unpack(self._received(process.FITTING))
        return len(forced) + int(fitting)

    def accept(self, token: int) -> None:
        """Behind forced tokens, the process computes the next mask while the model computes the next logits."""
        if not self.allowed()[token]:
            raise self._unfollowable(f"token {token} is not allowed here")
        if self._forced:
            del self._forced[0]
        else:
            self._forced = self._mask = None
            self._send(process.TOKEN + process.packed([token]))

    def close(self) -> None:
        self._child.close()

    def _mask_behind_forced(self) -> NDArray[np.bool_]:
        if self._mask is None:
            bits = np.frombuffer(self._received(process.MASK), np.uint8)
            bits = np.unpackbits(bits, count=self._vocab_size, bitorder="little")
            self._mask = bits.view(np.bool_)
        return self._mask

    def _send(self, data: bytes) -> None:
        try:
            self._child.connection.send_bytes(data)
        except OSError as error:
            raise self._unfollowable() from error

    def _received(self, wanted: bytes) -> bytes:
        """What the next message says, which is of the kind that is wanted."""
        connection, deadline = self._child.connection, time.monotonic() + _LONGEST
        try:
            while not connection.poll(_LOOK):
                if self._cancelled():
                    raise Cancelled("nobody wants this answer any more")
                if time.monotonic() > deadline:
                    raise self._unfollowable()
            data = connection.recv_bytes()
        except (EOFError, OSError) as error:
            raise self._unfollowable() from error
        kind, rest = data[:1], data[1:]
        if kind == process.BROKEN:
            raise ConfigError(f"{self._field} is not {self._title}: {rest.decode()}", field=self._field)
        if kind == process.REFUSED:
            raise self._unfollowable(rest.decode())
        assert kind == wanted
        return rest

    def _unfollowable(self, reason: str = "") -> UnfollowableError:
        """reason: as in the error."""
        reason = next((ours for theirs, ours in _REASONS.items() if reason.startswith(theirs)), reason)
        noun = self._title.split()[-1]
        remedy = f"correct the {noun}, or give a simpler one" if reason else f"give a simpler {noun}"
        return UnfollowableError(
            f"{self._field} cannot be followed ({reason or _TOO_MUCH}): {remedy}",
            field=self._field,
            reason=reason,
        )


class _ForkServer:
    """The process that reads the tokenizer and has one child per grammar. Raises BackendError."""

    def __init__(self, tokenizer_file: Path, vocab_size: int, end_ids: list[int]) -> None:
        self._lock = threading.Lock()
        self._retired: deque[int] = deque()  # children to end
        self.alive = True
        # When its socket closes, it ends its children and itself.
        self._process = Killable(
            Path(process.__file__),
            quiet=False,
            patience=1,
            tokenizer_file=str(tokenizer_file),
            vocab_size=vocab_size,
            end_ids=end_ids,
            overrides=COMPACT,
        )
        self._socket = self._process.socket
        self._socket.settimeout(_LONGEST_START)
        try:
            told = self._socket.recv(65536)
        except OSError as error:
            told = str(error).encode()
        if told != process.READY:
            self.close()
            raise _unusable(told.decode("utf-8", "replace") or "its process ended")

    def child(self) -> _Child:
        """A new process, which lives until it is closed."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                number = self.ask(0, theirs.fileno())
            except BackendError:
                ours.close()
                raise
        if number < 0:
            ours.close()
            raise BackendError(
                "no process could be started for the grammar: the system allows no more; try again later"
            )
        return _Child(self, number, Connection(ours.detach()))

    def ask(self, child: int, *descriptors: int) -> int:
        try:
            with self._lock:
                self._retire()
                return self._asked(child, *descriptors)
        finally:
            self._sweep()

    def end(self, number: int) -> None:
        """End a child. May be called at any time, also by the garbage collector: it never waits."""
        self._retired.append(number)
        self._sweep()

    def close(self) -> None:
        self.alive = False
        self._process.end()

    def _asked(self, child: int, *descriptors: int) -> int:
        try:
            socket.send_fds(self._socket, [process.INTEGER.pack(child)], descriptors)
            return int(process.INTEGER.unpack(self._socket.recv(process.INTEGER.size))[0])
        except (OSError, struct.error) as error:
            self.alive = False
            log.error("the process that compiles grammars has ended; the next grammar starts another")
            raise BackendError("the process that compiles grammars has ended: try again") from error

    def _sweep(self) -> None:
        while (
            self.alive and self._retired and self._lock.acquire(blocking=False)
        ):  # otherwise the thread that holds the lock does it
            try:
                with contextlib.suppress(BackendError):
                    self._retire()
            finally:
                self._lock.release()

    def _retire(self) -> None:
        while self._retired:
            self._asked(self._retired.popleft())


class _Child:
    """One grammar's process, and the connection to it."""

    def __init__(self, server: _ForkServer, number: int, connection: Connection) -> None:
        self.connection = connection
        self.close: Callable[[], object] = weakref.finalize(self, _close, server, number, connection)


def _close(server: _ForkServer, number: int, connection: Connection) -> None:
    connection.close()
    server.end(number)


def _library() -> Any:
    if importlib.util.find_spec("llguidance") is None:
        raise BackendError("structured answers need the package llguidance: pip install 'h2o-edge[serve]'")
    import llguidance

    return llguidance


def _unusable(reason: object) -> BackendError:
    return BackendError(f"llguidance cannot use this bundle's tokenizer ({reason})")
