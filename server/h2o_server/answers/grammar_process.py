"""Where foreign schemas are compiled and followed: processes that can be killed.

llguidance's own limits do not apply while it compiles: a schema of 80 bytes can take minutes and gigabytes,
in one call that cannot be interrupted. So a *fork server* reads the tokenizer once, and every grammar gets a
process, forked within milliseconds, with limits from the operating system. Its memory is freed when it ends,
and no grammar can harm another or the server.

Without a fork each process would read the tokenizer again, half a second for 49,152 tokens, and a request may ask
for 64 answers. multiprocessing's fork server would import the user's main script in each process.

This file is a script of `killable`: it imports nothing from the package, so the fork server stays small and has one
thread, as forking requires.

Parent and fork server speak over a socket: an int64 that is 0, with a file descriptor, requests a process on
that connection, and the answer is its id; an id ends that process. Parent and process speak over a
`Connection`: first JSON_SCHEMA, GBNF or LARK and the text, then TOKEN and one int64 per token. Each time two
messages come back: FORCED and the tokens that must come next, as int64, which the process follows at once; and
MASK and the bits of the tokens allowed after these. In place of either comes one of the words below and a sentence.
DRAFT and tokens that might come after these are answered by FITTING and how many of them the grammar allows, as
int64.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from h2o_runtime.killable import Limits

JSON_SCHEMA, GBNF, LARK = b"s", b"g", b"l"  # what a grammar is written in
TOKEN, DRAFT = b"t", b"d"
FORCED, MASK, FITTING = b"f", b"m", b"n"
REFUSED, BROKEN = b"r", b"b"  # BROKEN: the grammar is invalid; REFUSED without a reason: it takes too much
READY = b"ready"

INTEGER = struct.Struct("<q")
MOST_FORCED = 15  # tokens of one message; a decode step has 16 rows
SECONDS = 2  # seconds of processor time to compile; whole numbers, as the operating system counts
SECONDS_PER_TOKEN = 0.05  # more seconds for every token of the answer, on average
MEMORY = 256 << 20  # bytes above the fork server's size


def main(
    limits: Limits,
    descriptor: int,
    tokenizer_file: str,
    vocab_size: int,
    end_ids: list[int],
    overrides: dict[str, Any],
) -> None:
    """The fork server: runs until the parent exits. overrides: options of the library, for every JSON schema."""
    with socket.socket(fileno=descriptor) as parent:
        import llguidance

        try:
            with open(tokenizer_file, encoding="utf-8") as file:
                text = file.read()
            tokenizer = llguidance.LLTokenizer(text, n_vocab=vocab_size, eos_token=end_ids)
        except Exception as error:  # the library raises plain ValueError and RuntimeError
            parent.sendall(str(error).encode() or b"no reason given")
            return
        parent.sendall(READY)
        follower = _Follower(llguidance, tokenizer, vocab_size, end_ids, overrides, limits)
        server = _ForkServer(parent, follower.follow)
        while server.serve():
            pass


class _ForkServer:
    def __init__(self, parent: socket.socket, work: Callable[[Connection], None]) -> None:
        """work: what a child does until its parent hangs up."""
        self._parent, self._work = parent, work
        self._children: set[int] = set()  # children are not reaped here, so their ids are not reused

    def serve(self) -> bool:
        """Handle one request of the parent → whether to continue."""
        data, descriptors, _, _ = socket.recv_fds(self._parent, INTEGER.size, 1)
        if len(data) < INTEGER.size:
            for child in list(self._children):
                self._end(child)
            return False
        (child,) = INTEGER.unpack(data)
        if child:
            self._end(child)
            answer = child
        else:
            answer = self._fork(descriptors[0])
        self._parent.sendall(INTEGER.pack(answer))
        return True

    def _fork(self, descriptor: int) -> int:
        """The id of a new process; -1 if the system cannot create one."""
        try:
            child = os.fork()
        except OSError:
            child = -1
        if child == 0:
            self._parent.close()
            try:
                with Connection(descriptor) as connection:
                    self._work(connection)
            finally:
                os._exit(0)
        os.close(descriptor)
        if child > 0:
            self._children.add(child)
        return child

    def _end(self, child: int) -> None:
        if child in self._children:
            self._children.remove(child)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


class _Follower:
    """One grammar's process."""

    def __init__(
        self,
        library: Any,
        tokenizer: Any,
        vocab_size: int,
        end_ids: list[int],
        overrides: dict[str, Any],
        limits: Limits,
    ) -> None:
        self._library, self._tokenizer, self._overrides, self._limits = library, tokenizer, overrides, limits
        self._mask_bytes = (vocab_size + 31) // 32 * 4
        self._end_ids = frozenset(end_ids)

    def follow(self, connection: Connection) -> None:
        """Until the parent hangs up."""
        with open("/dev/null", "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stderr.fileno())
        self._limits.memory(MEMORY)
        self._allow_seconds(0)
        with contextlib.suppress(EOFError, OSError):
            asked = connection.recv_bytes()
            try:
                source = self._source(asked[:1], asked[1:].decode())
            except Exception as error:  # the converter fails on bad input in many ways
                reason = str(error).partition("\n")[0] or type(error).__name__
                connection.send_bytes(BROKEN + reason.encode("utf-8", "replace"))
                return
            matcher = self._library.LLMatcher(self._tokenizer, source, log_level=0)
            tokens = 0  # followed or drafted: each takes time
            while True:
                forced = self._follow_forced(matcher, tokens)
                connection.send_bytes(FORCED + packed(forced))
                tokens += len(forced)
                connection.send_bytes(self._allowed(matcher, tokens))
                kind, given = unpacked(connection.recv_bytes())
                while kind == DRAFT:
                    tokens += len(given)
                    self._allow_seconds(tokens)
                    connection.send_bytes(FITTING + INTEGER.pack(matcher.validate_tokens(given)))
                    kind, given = unpacked(connection.recv_bytes())
                tokens += 1
                self._allow_seconds(tokens)
                matcher.consume_token(*given)

    def _follow_forced(self, matcher: Any, tokens: int) -> list[int]:
        """Consume tokens while the mask allows only one, which does not end the answer → these tokens.

        A mask may take long, and the model's step need not wait for it. So masks are computed only where
        llguidance says that bytes are forced: those cost little.
        """
        forced: list[int] = []
        while len(forced) < MOST_FORCED and matcher.compute_ff_tokens():
            mask = int.from_bytes(matcher.compute_bitmask(), "little")
            token = mask.bit_length() - 1
            if mask != 1 << token or token in self._end_ids:
                break
            forced.append(token)
            self._allow_seconds(tokens + len(forced))
            matcher.consume_token(token)
        return forced

    def _source(self, kind: bytes, text: str) -> Any:
        matcher = self._library.LLMatcher
        if kind == JSON_SCHEMA:
            return matcher.grammar_from_json_schema(text, overrides=self._overrides)
        if kind == LARK:
            return matcher.grammar_from_lark(text)
        from llguidance.gbnf_to_lark import gbnf_to_lark

        return matcher.grammar_from_lark(gbnf_to_lark(text))

    def _allowed(self, matcher: Any, tokens: int) -> bytes:
        mask = b"" if matcher.is_error() else matcher.compute_bitmask()
        if matcher.is_error():
            return REFUSED + reason_of(matcher.get_error()).encode("utf-8", "replace")
        if time.process_time() > SECONDS + SECONDS_PER_TOKEN * tokens:
            return REFUSED
        return MASK + bytes(mask[: self._mask_bytes])

    def _allow_seconds(self, tokens: int) -> None:
        """For the next token."""
        self._limits.seconds(SECONDS + int(SECONDS_PER_TOKEN * tokens))


def reason_of(error: str) -> str:
    """An error of the library in one line, without places in grammars and patterns, and the state behind it."""
    told = re.sub(r"^at \d+\(\d+\): (failed to compile JSON schema: )?", "", error.partition("\n<state>")[0])
    lines = re.split(r"\n +\d+ \| ", told)[0].split("\n")
    kept = [line.strip() for line in lines if not re.match(" {4}|  while processing", line)]
    return " ".join(kept).replace(": error: ", ": ").removeprefix("Unsatisfiable schema: ")


def packed(tokens: Iterable[int]) -> bytes:
    """Tokens of a message."""
    return b"".join(map(INTEGER.pack, tokens))


def unpacked(message: bytes) -> tuple[bytes, list[int]]:
    """The kind of a message, and its tokens."""
    return message[:1], [token for (token,) in INTEGER.iter_unpack(message[1:])]
