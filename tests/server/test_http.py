"""Methods, paths, queries and headers: what there is, and what everybody else is told."""

from __future__ import annotations

import contextlib
import json
import socket

import pytest
from tests.server.running import Server, error_of

GETS = [
    *("/", "/health", "/v1/models", "/v1/models/tool-llama", "/models", "/models/tool-llama"),
    *("/props", "/metrics", "/openapi.json"),
]
POSTS = [
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/tokenize", "/detokenize"),
    *("/chat/completions", "/completions", "/responses"),
]
KIND = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("method", "path"), [*(("GET", path) for path in GETS), *(("POST", path) for path in POSTS)]
)
def test_other_methods_are_not_allowed(server: Server, method: str, path: str) -> None:
    assert method == "POST" or server.get(path).status_code == 200
    for other in {"GET", "HEAD", "POST", "PUT", "DELETE", "TRACE"} - {
        method,
        "HEAD" if method == "GET" else "",
    }:
        response = server.http.request(other, path, headers=KIND)
        assert response.status_code == 405
        allowed = {word.strip() for word in response.headers["allow"].split(",")}
        assert method in allowed
        assert other not in allowed
        if other != "HEAD":
            assert other in error_of(response, 405)["message"]


@pytest.mark.parametrize("path", ["/", "/health", "/static/app.js"])
def test_head_is_get_without_a_body(server: Server, path: str) -> None:
    response = server.http.head(path)
    assert response.status_code == 200
    assert response.content == b""


@pytest.mark.parametrize(
    "path",
    [
        *("/nothing", "/v1/", "/v1/images/generations", "/docs", "/favicon.ico"),
        *("/%00", "/%0d%0aX-Evil:%201", "/%ff%fe", "/caf%C3%A9", "/" + "a" * 5000),
        *("/static/", "/static/nothing.js", "/static/../../settings.py", "/static/..%2f..%2fsettings.py"),
        *("/static/%2e%2e/%2e%2e/settings.py", "/static/..\\..\\settings.py", "/static//etc/passwd"),
        *("/static/%00", "/static/" + "a" * 300, "/v1/models/other", "/v1/models/..%2f..%2fprops"),
        *("/memory/nothing", "/memory/nothing/counts?layer=0&boundary=0"),
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
    from h2o_server.serve import bind

    with bind("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        connected, _ = listener.accept()
        with connected:
            assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize(
    ("method", "path", "status", "body"),
    [
        ("POST", "/v1/chat/completions", 400, b"{"),
        ("POST", "/v1/chat/completions", 400, b'{"messages": []}'),
        ("POST", "/v1/completions", 400, b'{"prompt": [99999]}'),
        ("POST", "/v1/completions", 400, b'{"prompt": "a b", "repetition_penalty": 1e-300}'),
        ("POST", "/tokenize", 400, b"{}"),
        ("POST", "/nothing", 404, b"{}"),
        ("GET", "/tokenize", 405, b""),
        ("GET", "/memory/x", 404, b""),
        ("GET", "/memory/x/counts", 400, b""),
        ("GET", "/static/nothing", 404, b""),
    ],
)
def test_what_is_invalid_is_counted_once(
    server: Server, method: str, path: str, status: int, body: bytes
) -> None:
    def outcomes() -> dict[str, float]:
        names = ("invalid", "failed", "refused", "left", "cancelled")
        return {name: server.metric("h2o_requests_total", outcome=name) for name in names}

    before = outcomes()
    assert server.http.request(method, path, content=body, headers=KIND).status_code == status
    assert outcomes() == before | {"invalid": before["invalid"] + 1}


def test_what_no_application_sees_is_counted_too(server: Server) -> None:
    before = server.metric("h2o_requests_total", outcome="invalid")
    with server.connection() as connected:
        connected.sendall(b"GARBAGE\r\n\r\n")
        assert connected.recv(1000).startswith(b"HTTP/1.1 400 ")
    assert server.metric("h2o_requests_total", outcome="invalid") == before + 1


def test_an_invalid_request_that_shows_in_its_stream_is_counted(server: Server) -> None:
    before = server.metric("h2o_requests_total", outcome="invalid")
    response = server.complete("a b", stream=True, repetition_penalty=1e-300)
    assert "repetition_penalty" in response.text
    assert server.metric("h2o_requests_total", outcome="invalid") == before + 1


def answer_to_old_http(server: Server, path: str, body: bytes, *headers: bytes) -> tuple[bytes, bytes]:
    """Headers and body of an answer that ends with its connection."""
    head = b"POST %s HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n" % path.encode()
    with server.connection() as connected:
        length = b"Content-Length: %d\r\n\r\n" % len(body)
        connected.sendall(head + b"".join(header + b"\r\n" for header in headers) + length + body)
        answer = b"".join(iter(lambda: connected.recv(65536), b""))
    told, _, rest = answer.partition(b"\r\n\r\n")
    assert told.startswith(b"HTTP/1.1 200 OK\r\n"), answer
    return told.lower(), rest


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
def test_http_1_0_gets_no_chunks(server: Server, path: str) -> None:
    asked = {
        "chat": {"messages": [{"role": "user", "content": "x"}]},
        "comp": {"prompt": "x"},
        "resp": {"input": "x"},
    }
    limit = {"max_output_tokens" if "resp" in path else "max_tokens": 4}
    body = json.dumps({**asked[path[4:8]], **limit, "stream": True}).encode()
    head, told = answer_to_old_http(server, path, body, b"Connection: keep-alive")
    assert b"transfer-encoding" not in head
    assert b"content-length" not in head
    assert told.startswith((b"data: {", b"event: "))
    assert all(line.startswith((b"data: ", b"event: ")) for line in told.split(b"\n") if line)
    assert told.endswith(b"}\n\n" if "resp" in path else b"data: [DONE]\n\n")


def test_http_1_0_gets_plain_answers_with_their_length(server: Server) -> None:
    head, told = answer_to_old_http(server, "/tokenize", b'{"content": "x"}')
    assert b"content-length: %d" % len(told) in head
    assert json.loads(told)["tokens"]
