"""Methods, paths, queries and headers: what there is, and what everybody else is told."""

from __future__ import annotations

import contextlib
import socket

import pytest
from tests.runtime.server.running import Server, error_of

GETS = ["/", "/health", "/v1/models", "/v1/models/tool-llama", "/props", "/metrics", "/openapi.json"]
POSTS = ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"]
KIND = {"Content-Type": "application/json"}


@pytest.mark.parametrize("path", GETS)
def test_what_can_be_read(server: Server, path: str) -> None:
    assert server.get(path).status_code == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [(method, path) for method in ("POST", "PUT", "DELETE", "PATCH", "TRACE") for path in GETS]
    + [(method, path) for method in ("GET", "HEAD", "PUT", "DELETE", "PATCH", "TRACE") for path in POSTS],
)
def test_other_methods_are_not_allowed(server: Server, method: str, path: str) -> None:
    response = server.http.request(method, path, headers=KIND)
    assert response.status_code == 405
    allowed = {word.strip() for word in response.headers["allow"].split(",")}
    assert "POST" in allowed if path in POSTS else "GET" in allowed
    assert method not in allowed
    if method != "HEAD":
        assert method in error_of(response, 405)["message"]


@pytest.mark.parametrize("path", ["/", "/health", "/static/app.js"])
def test_head_is_get_without_a_body(server: Server, path: str) -> None:
    response = server.http.head(path)
    assert response.status_code == 200
    assert response.content == b""


@pytest.mark.parametrize(
    "path",
    [
        "/nothing",
        "/v1",
        "/v1/",
        "/v1/embeddings",
        "/v1/responses",
        "/health/",
        "//health",
        "/docs",
        "/redoc",
        "/favicon.ico",
        "/%00",
        "/%0d%0aX-Evil:%201",
        "/%ff%fe",
        "/caf%C3%A9",
        "/" + "a" * 5000,
        "/static/",
        "/static/nothing.js",
        "/static/../../settings.py",
        "/static/..%2f..%2fsettings.py",
        "/static/%2e%2e/%2e%2e/settings.py",
        "/static/....//....//settings.py",
        "/static/..\\..\\settings.py",
        "/static//etc/passwd",
        "/static/%00",
        "/static/" + "a" * 300,
        "/v1/models/other",
        "/v1/models/",
        "/v1/models/..%2f..%2fprops",
        "/memory/nothing",
        "/memory/nothing/counts?layer=0&boundary=0",
    ],
)
def test_what_is_not_there(server: Server, path: str) -> None:
    """As raw bytes: clients tidy up paths before they send them."""
    with server.connection() as connected:
        connected.sendall(
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode("latin-1")
        )
        answer = b"".join(iter(lambda: connected.recv(65536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 404 "), answer[:300]
    assert b"X-Evil" not in head
    assert b'"not_found_error"' in body
    assert b"root:" not in body


@pytest.mark.parametrize(
    "query", ["", "?layer=0", "?layer=x&boundary=0", "?layer=-1&boundary=0", "?layer=0&boundary=9e9"]
)
def test_bad_queries(server: Server, query: str) -> None:
    error = error_of(server.get(f"/memory/x/counts{query}"), 400)
    assert error["param"] in ("layer", "boundary")


def test_headers_may_be_long_but_not_endless(server: Server) -> None:
    assert server.get("/health", headers={"X": "a" * 20_000}).status_code == 200
    assert server.get("/health", headers={f"X-{i}": "a" for i in range(90)}).status_code == 200
    for endless in (b"X: " + b"a" * 1000, b"X: a\r\n" * 200, b"\r\nX:" + b" " * 1000):
        with server.connection() as connected:
            connected.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
            answer = b""
            try:
                for _ in range(5000):
                    connected.sendall(endless)
            except OSError:  # the server has closed
                pass
            with contextlib.suppress(OSError):
                answer = connected.recv(1000)
            assert not answer or answer.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 400 ")), answer


def test_the_log_holds_no_line_breaks_of_a_clients(server: Server) -> None:
    server.get("/a%0A2026-01-01 00:00:00 INFO forged")
    assert not [line for line in server.log.splitlines() if line.startswith("2026-01-01 00:00:00")]


def test_small_writes_leave_at_once() -> None:
    """Connections inherit it from the listener. Without it each token of a stream waits 40 ms for the last one's
    acknowledgement; too little to be measured on a busy machine, too much for a reader."""
    from h2o_runtime.server.serve import bind

    with bind("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        connected, _ = listener.accept()
        with connected:
            assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
