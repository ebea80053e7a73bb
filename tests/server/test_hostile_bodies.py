"""Bodies that cost more than they are worth: refused by what the context holds, while everybody else is served.

On a quiet machine /health takes less than 50 ms and the server stays within 300 MB of what it had; a refusal takes
less than a second. Tests allow ten times the time, as a machine that runs tests is not quiet.
"""

from __future__ import annotations

import contextlib
import functools
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.conftest import EXAMPLE
from tests.server.conftest import Serve
from tests.server.running import Server, error_of, request, wait_for

from h2o_runtime.errors import ContextOverflowError
from h2o_runtime.text import Tokenizer
from h2o_server.http.json_body import has_more_values

HEALTH = 10 * 0.05  # seconds
REFUSAL = 10 * 1.0
PAUSE = 0.02  # seconds between two looks: without one, looks would take most of the processor's time
MEMORY = 300 << 20  # bytes beyond those of the idle server

CHAT, TEXT, TOKENIZE = "/v1/chat/completions", "/v1/completions", "/tokenize"
MANY = 46_000  # JSON values; a few more are refused unread
USER = b'{"role": "user", "content": "x"}'


def filled(before: bytes, unit: bytes, count: int, after: bytes) -> bytes:
    return before + b",".join([unit] * count) + after


def keys(before: bytes, after: bytes) -> bytes:
    return before + b",".join(b'"k%d": 1' % number for number in range(MANY)) + after


def noise(length: int) -> str:
    dice = random.Random(0)
    return "".join(dice.choices("abcdefghijklmnopqrstuvwxyz0123456789 ", k=length))


def text(name: str, value: str) -> bytes:
    return json.dumps({name: value}).encode()


# Bodies are made when they are sent: collecting the tests would take seconds.
CASES: dict[str, tuple[str, Callable[[], bytes], set[int]]] = {
    "tokenize as much as may come": (TOKENIZE, lambda: text("content", noise(1_800_000)), {400}),
    "tokenize as much as it does": (TOKENIZE, lambda: text("content", noise(262_000)), {200}),
    "tokenize with pieces": (
        TOKENIZE,
        lambda: b'{"with_pieces": true, "content": "' + b"x " * 130_000 + b'"}',
        {200},
    ),
    "prompt as long as may come": (TEXT, lambda: text("prompt", noise(1_800_000)), {400}),
    "messages that are right": (CHAT, lambda: filled(b'{"messages": [', USER, MANY // 3, b"]}"), {400}),
    "unknown parameters": (CHAT, lambda: keys(b"{", b"}"), {400}),
    "5 million ids": (TEXT, lambda: filled(b'{"prompt": [', b"1", 5_000_000, b"]}"), {413}),
    "ids": (TEXT, lambda: filled(b'{"prompt": [', b"1", MANY, b"]}"), {400}),
    "more values than any request has": (TEXT, lambda: filled(b'{"prompt": [', b"1", 800_000, b"]}"), {400}),
    "brackets": (CHAT, lambda: b"[" * 1_800_000, {400}),
}


@functools.cache
def case(name: str) -> tuple[str, bytes, set[int]]:
    """Where it goes, its body, and the statuses that may answer it."""
    path, body, statuses = CASES[name]
    return path, body(), statuses


class Watcher:
    """Asks for /health again and again, and looks at the memory; what it is to find outlasts its pauses."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._process = psutil.Process(server.process.pid)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.seconds: list[float] = []
        self.most, self.statuses = 0, set[int]()

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    @property
    def slowest(self) -> float:
        return max(self.seconds, default=0.0)  # what is refused at once leaves no time to ask

    def memory(self) -> int:
        return int(self._process.memory_info().rss)

    def _watch(self) -> None:
        with self._server.client() as client:
            client.get("/health")
            while not self._done.wait(PAUSE):
                began = time.monotonic()
                self.statuses.add(client.get("/health").status_code)
                self.seconds.append(time.monotonic() - began)
                self.most = max(self.most, self.memory())


@pytest.fixture(scope="module")
def idle(tiny_bundle: Path) -> Iterator[tuple[Server, int]]:
    """A server with the example model's own context, which has answered once, and its memory."""
    with Server(tiny_bundle, fresh=True) as server:
        assert server.chat().status_code == 200
        assert server.post(TOKENIZE, {"content": "x"}).status_code == 200
        yield server, int(psutil.Process(server.process.pid).memory_info().rss)


# Of "ids" and the prompt there are more above and below; all of them are sent by test_hostile_load.py.
NIGHTLY = ("prompt as long as may come", "ids", "tokenize as much as it does")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly if name in NIGHTLY else ()) for name in CASES]
)
def test_nobody_else_notices(idle: tuple[Server, int], name: str) -> None:
    """The quickest of three rounds counts: what is wrong with a body keeps /health waiting every time."""
    (server, before), (path, body, statuses) = idle, case(name)
    slowest: list[float] = []
    while len(slowest) < 3 and (not slowest or min(slowest) >= HEALTH):
        with Watcher(server) as watcher:
            began = time.monotonic()
            answer = server.post(path, body)
            took = time.monotonic() - began
        slowest.append(watcher.slowest)
        assert answer.status_code in statuses, answer.text[:500]
        if answer.status_code >= 400:
            error_of(answer, answer.status_code)
            assert took < REFUSAL
        assert watcher.statuses <= {200}
        assert watcher.most < before + MEMORY
        assert watcher.memory() < before + MEMORY
    assert min(slowest) < HEALTH, slowest


def test_the_limit_is_told(idle: tuple[Server, int]) -> None:
    server, _ = idle
    limits = server.get("/props").json()["limits"]
    most = limits["max_body_bytes"]
    assert most == 8192 * 32 * 6 + (
        256 << 10
    )  # tokens, bytes of the longest, bytes of JSON for each; the rest
    assert limits["body_memory_bytes"] == 64 << 20
    error = error_of(server.post(TEXT, b" " * (most + 1)), 413)
    assert error["code"] == "context_length_exceeded"
    assert str(most) in error["message"]
    assert "--ctx-size" not in error["message"]  # the model has no more
    error = error_of(server.post(TEXT, text("prompt", noise(300_000))), 400)
    assert error["code"] == "context_length_exceeded"
    assert error["n_prompt_tokens"] > error["n_ctx"] == 8192


def test_all_bodies_share_one_budget(serve: Serve) -> None:
    """Those that arrive slowly hold what has come; small ones always get in, and it is given back."""
    server = serve("--limits", "body=1 memory=1 body_timeout=30")
    large = text("content", "x" * 700_000)
    with server.connection() as first:
        first.sendall(request("POST", TOKENIZE, large)[:-1])
        time.sleep(2)  # until it is there: what comes first gets in
        refused = server.post(TOKENIZE, large)
        assert error_of(refused, 503)["code"] == "memory_budget"
        assert int(refused.headers["retry-after"]) >= 1
        assert server.chat().status_code == 200
    wait_for(lambda: server.post(TOKENIZE, large).status_code != 503)


def test_no_prompt_waits_for_texts_that_are_only_tokenized(idle: tuple[Server, int]) -> None:
    """And none of them is begun for a client that has left."""
    server, _ = idle
    path, body, _ = case("tokenize with pieces")
    with contextlib.ExitStack() as stack:
        for _ in range(30):  # a second each
            stack.enter_context(server.connection()).sendall(request("POST", path, body))
        began = time.monotonic()
        assert server.chat().status_code == 200
        assert time.monotonic() < began + REFUSAL
    began = time.monotonic()
    assert server.post(TOKENIZE, {"content": "x"}).status_code == 200
    assert time.monotonic() < began + REFUSAL


def test_values_are_counted_as_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever strings hold, and wherever the pieces are cut."""

    def marks(value: Any) -> int:
        inner = (
            list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else None
        )
        return 0 if inner is None else 1 + max(len(inner) - 1, 0) + sum(map(marks, inner))

    dice = random.Random(0)
    parts = ['a"b', "\\", '\\"', ",[{", 'x\\\\",', 1, [1, 2], {"k\\,": "}"}, "é,", "\n"]
    for piece in (1, 2, 3, 5, 64):
        monkeypatch.setattr("h2o_server.http.json_body._BLOCK", piece)
        for _ in range(100):
            value = dice.choices(parts, k=dice.randrange(1, 12))
            body = json.dumps(value, ensure_ascii=False).encode()
            assert has_more_values(body, marks(value) - 1)
            assert not has_more_values(body, marks(value))


# The tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(EXAMPLE)


def test_the_longest_token(tokenizer: Tokenizer) -> None:
    assert tokenizer.longest_token == max(
        len(tokenizer.decode([token], skip_special_tokens=False).encode()) for token in range(4096)
    )


@pytest.mark.parametrize("length", [10, 70_000])
def test_a_text_that_fits_is_encoded_as_ever(tokenizer: Tokenizer, length: int) -> None:
    sample = noise(length)
    ids = tokenizer.encode(sample)
    assert tokenizer.encode_within(sample, len(ids)) == ids


def test_a_text_that_does_not_is_not_encoded_to_its_end(tokenizer: Tokenizer) -> None:
    began = time.monotonic()
    for sample in (noise(1000) * 3000, "x" * 100_000_000):
        with pytest.raises(ContextOverflowError, match="at least") as caught:
            tokenizer.encode_within(sample, 100_000)
        assert caught.value.n_prompt_tokens > caught.value.n_ctx == 100_000
    assert time.monotonic() < began + 10
