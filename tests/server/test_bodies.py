"""Bodies that are no request: not JSON, not UTF-8, too long, too slow, or not what their headers say."""

from __future__ import annotations

import gzip
import json
import re
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.server.conftest import Serve
from tests.server.running import Server, chat_bytes, error_of, request

CHAT = "/v1/chat/completions"
PATHS = [CHAT, "/v1/completions", "/tokenize", "/detokenize"]
SURROGATE = "\ud800"
ODD_TOOL = {"type": "function", "function": {"name": "f", "description": SURROGATE}}
CALLS = {
    "role": "assistant",
    "tool_calls": [{"id": SURROGATE, "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}
MIB = 1 << 20


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"{", id="cut"),
        pytest.param(b"{'a': 1}", id="quotes"),
        pytest.param(b'{"a": 1,}', id="comma"),
        pytest.param(b"{} {}", id="two"),
        pytest.param(b'{"a": NaN}', id="nan"),
        pytest.param(b'{"a": -Infinity}', id="minus-infinity"),
        pytest.param(b'{"a": 1' + b"0" * 5000 + b"}", id="digits"),
        pytest.param(b'{"a": "\xff"}', id="byte"),
        pytest.param(b'{"a": "\xed\xa0\x80"}', id="surrogate-bytes"),
        pytest.param('{"a": 1}'.encode("utf-16"), id="utf16"),
        pytest.param(b"\x1f\x8b\x08\x00", id="gzip"),
        pytest.param(b"[" * 100_000 + b"]" * 100_000, id="deep"),
        pytest.param(b'{"a":' * 50_000 + b"1" + b"}" * 50_000, id="deep-objects"),
        pytest.param(b'{"a":' + b"[" * 101 + b"]" * 101 + b"}", id="just-too-deep"),
    ],
)
def test_a_body_that_is_not_json(server: Server, body: bytes) -> None:
    error = error_of(server.post(CHAT, body), 400)
    assert (error["code"], error["param"]) == ("invalid_json", None)


@pytest.mark.parametrize("path", PATHS)
def test_no_path_takes_anything_else(server: Server, path: str) -> None:
    assert error_of(server.post(path, b"{"), 400)["code"] == "invalid_json"
    assert error_of(server.post(path, b""), 400)["code"] == "missing_parameter"
    for body in (b"[]", b'"x"', b"1", b"null", b"true"):
        assert "message" in error_of(server.post(path, body), 400)
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/jsonp", ""):
        error = error_of(server.post(path, b"{}", headers={"Content-Type": kind}), 415)
        assert "Content-Type" in error["message"]
    for coding in ("gzip", "br", "gzip, identity", "what"):
        error = error_of(server.post(path, gzip.compress(b"{}"), headers={"Content-Encoding": coding}), 415)
        assert error["code"] == "unsupported_encoding"
        assert coding in error["message"]


def test_headers_may_say_it_in_other_words(server: Server) -> None:
    headers = {"Content-Type": "Application/JSON ; charset=UTF-8", "Content-Encoding": "Identity"}
    assert server.post("/tokenize", {"content": "x"}, headers=headers).status_code == 200


def test_depth_that_is_allowed(server: Server) -> None:
    value: Any = 1
    for _ in range(98):
        value = [value]
    kwargs = {"x": value}
    assert server.chat(chat_template_kwargs=kwargs, metadata=kwargs).status_code == 200
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"x": value[0][0][0][0]}}}]
    assert server.chat(tools=tools, tool_choice="auto").status_code == 200


def test_arguments_of_a_call_may_be_any_text(server: Server) -> None:
    for arguments in ("", "x", "[" * 50_000, "[" * 600 + "]" * 600, "1" * 5000, "NaN", '{"a": 1e400}', "[1]"):
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
        talk = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}]
        response = server.chat(messages=talk)
        assert response.status_code == 200 or error_of(response, 400), arguments[:9]


@pytest.mark.parametrize("odd", ['"\\ud800"', "1e400"])
def test_arguments_that_a_model_wrote_come_back(server: Server, odd: str) -> None:
    """A model may write half a surrogate pair; the conversation goes on all the same."""
    function = {"name": "f", "arguments": f'{{"a": {odd}}}'}
    talk = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "1", "content": "y"},
    ]
    answer = server.chat(messages=talk)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [{"role": "user", "content": SURROGATE}]}),
        (CHAT, {"messages": [{"role": SURROGATE, "content": "x"}]}),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": SURROGATE}]}]}),
        (CHAT, {"model": SURROGATE}),
        (CHAT, {"stop": ["x", SURROGATE]}),
        (CHAT, {SURROGATE: 1}),
        (CHAT, {"logit_bias": {SURROGATE: 1}}),
        (CHAT, {"prefill": {SURROGATE: 1}}),
        (CHAT, {"tools": [ODD_TOOL]}),
        (CHAT, {"tools": [{"type": "function", "function": {"name": "f", "parameters": {SURROGATE: 1}}}]}),
        ("/v1/completions", {"prompt": [SURROGATE]}),
        ("/tokenize", {"content": "x" + SURROGATE}),
        ("/detokenize", {"tokens": SURROGATE}),
    ],
)
def test_half_a_surrogate_pair(server: Server, path: str, body: dict[str, Any]) -> None:
    if path == CHAT:
        body = {"messages": [{"role": "user", "content": "x"}], **body}
    error_of(server.post(path, body), 400)


@pytest.mark.parametrize(
    "schema", [{"properties": {SURROGATE: {}}}, {"properties": {"a": {"enum": [SURROGATE]}}}]
)
@pytest.mark.parametrize("strict", [False, True])
def test_half_a_surrogate_pair_in_a_schema_is_named(
    server: Server, schema: dict[str, Any], strict: bool
) -> None:
    schema = {"type": "object", **schema}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema, "strict": strict}}]
    shape = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": strict}}
    for field, more in (
        ("tools", {"tools": tools}),
        ("response_format.json_schema.schema", {"response_format": shape}),
    ):
        error = error_of(server.chat(**more), 400)
        assert error["param"] == field
        assert error["message"].startswith(field)
        assert "surrogate pair" in error["message"]


@pytest.mark.parametrize(
    "more",
    [
        {"user": SURROGATE},
        {"prompt_cache_key": SURROGATE},
        {"tools": [ODD_TOOL], "tool_choice": "none"},
        {"metadata": {"a": SURROGATE, SURROGATE: 1}},
        {"chat_template_kwargs": {"a": SURROGATE, SURROGATE: 1}},
        {"messages": [CALLS, {"role": "tool", "content": "x", "tool_call_id": SURROGATE}]},
    ],
)
def test_half_a_surrogate_pair_that_nobody_reads(server: Server, more: dict[str, Any]) -> None:
    assert server.chat(**more).status_code == 200


def test_a_pair_of_surrogates_is_a_character(server: Server) -> None:
    assert server.post("/tokenize", b'{"content": "\\ud83d\\ude00"}').json() == (
        server.post("/tokenize", {"content": "😀"}).json()
    )


def test_the_last_of_equal_names_counts(server: Server) -> None:
    ids = server.post("/tokenize", b'{"content": "x", "content": "y"}').json()
    assert ids == server.post("/tokenize", {"content": "y"}).json()


# Too long


def endless(length: int) -> Iterator[bytes]:
    yield b'{"content": "'
    for _ in range(length // 65536 + 1):
        yield b"x" * 65536
    yield b'"}'


def test_a_body_that_is_too_long(serve: Serve) -> None:
    server = serve("--ctx-size", 16_384, "--limits", "body=1")
    kind = {"Content-Type": "application/json"}
    error = error_of(server.post("/tokenize", {"content": "x" * MIB}), 413)
    assert error["code"] == "body_too_long"
    assert str(MIB) in error["message"]
    assert server.post("/tokenize", {"content": "x " * (MIB // 4)}).status_code == 200
    error_of(server.http.post("/tokenize", content=endless(MIB), headers=kind), 413)
    for length in (str(MIB + 1), "9999999999999"):
        raw = request("POST", "/tokenize", b"{}", Content_Length=length)
        assert answer_to(server, raw).startswith(b"HTTP/1.1 413 ")
    assert server.chat().status_code == 200


@pytest.mark.parametrize("chunked", [False, True])
def test_who_sends_a_long_body_to_its_end_sees_the_answer(serve: Serve, chunked: bool) -> None:
    """A connection that is closed while the client still sends is reset, and the answer on its way is lost."""
    server = serve("--ctx-size", 64, "--limits", "body=1")
    for _ in range(3):
        content: Any = endless(32 * MIB) if chunked else b"x" * (32 * MIB)
        response = server.http.post(
            "/tokenize", content=content, headers={"Content-Type": "application/json"}
        )
        error_of(response, 413)


# Not what the headers say


def received(connected: socket.socket, least: int = 1 << 20) -> bytes:
    """What comes until the server closes, `least` bytes are there, or nothing comes for a while."""
    data = b""
    try:
        while len(data) < least and (more := connected.recv(65536)):
            data += more
    except TimeoutError:
        pass
    return data


def answer_to(server: Server, raw: bytes, timeout: float = 2.0) -> bytes:
    with server.connection(timeout) as connected:
        connected.sendall(raw)
        return received(connected)


BODY = json.dumps({"content": "x"}).encode()


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(request("POST", "/tokenize", BODY, Content_Length="-1"), id="negative"),
        pytest.param(request("POST", "/tokenize", BODY, Content_Length="1e1"), id="exponent"),
        pytest.param(
            request("POST", "/tokenize", BODY).replace(b"\r\n\r\n", b"\r\nContent-Length: 3\r\n\r\n"),
            id="two",
        ),
        pytest.param(request("POST", "/tokenize", BODY, Transfer_Encoding="chunked"), id="and-chunked"),
        pytest.param(
            request("POST", "/tokenize", b"zz\r\nxx\r\n", Transfer_Encoding="chunked", Content_Length=""),
            id="no-chunk",
        ),
        pytest.param(b"GARBAGE\r\n\r\n", id="garbage"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(50), id="tls"),
        pytest.param(b"GET /\x00 HTTP/1.1\r\nHost: x\r\n\r\n", id="zero-in-path"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\nA\x00b: c\r\n\r\n", id="zero-in-header"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", id="http2"),
        pytest.param(b"BREW /pot HTTP/1.1\r\nHost: x\r\n\r\n", id="method"),
    ],
)
def test_what_is_not_http(server: Server, raw: bytes) -> None:
    answer = answer_to(server, raw)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 405 ", b"HTTP/1.1 404 ")), answer
    assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}
    assert b"application/json" in head


def test_a_body_longer_than_it_says_is_another_request(server: Server) -> None:
    raw = request("POST", "/tokenize", BODY + b"GARBAGE\r\n\r\n", Content_Length=str(len(BODY)))
    assert b"HTTP/1.1 400 " in answer_to(server, raw)


def test_a_chunked_body(server: Server) -> None:
    chunks = b"".join(b"%x\r\n%s\r\n" % (1, BODY[i : i + 1]) for i in range(len(BODY))) + b"0\r\n\r\n"
    raw = request("POST", "/tokenize", chunks, Transfer_Encoding="chunked", Content_Length="")
    assert answer_to(server, raw).startswith(b"HTTP/1.1 200 ")


def test_a_hundred_pipelined_requests_are_answered_in_order(server: Server) -> None:
    raw = b"".join(
        request("POST", "/detokenize", json.dumps({"tokens": [number]}).encode())
        for number in range(100, 200)
    )
    expected = [server.post("/detokenize", {"tokens": [number]}).content for number in range(100, 200)]
    answer = answer_to(server, raw)
    assert re.findall(rb"\r\n\r\n(\{.*\})", answer) == expected


def test_expect_100_continue(server: Server) -> None:
    with server.connection() as connected:
        connected.sendall(request("POST", "/tokenize", Content_Length=str(len(BODY)), Expect="100-continue"))
        assert b" 100 " in connected.recv(1000)
        connected.sendall(BODY)
        assert b" 200 " in connected.recv(10_000)


# Too slow


@pytest.mark.parametrize("part", ["nothing", "drops of headers", "drops of body"])
def test_a_slow_sender_is_let_go(serve: Serve, part: str) -> None:
    server = serve("--ctx-size", 64, "--limits", "body_timeout=1")
    raw = chat_bytes()
    cut = {"nothing": 0, "drops of headers": 5, "drops of body": len(raw) - 50}
    with server.connection(30) as connected:
        connected.sendall(raw[: cut[part]])
        rest = iter(raw[cut[part] :])
        began = time.monotonic()
        if part.startswith("drops"):
            connected.settimeout(0.25)
        answer = b""
        while time.monotonic() < began + 30:
            try:
                more = connected.recv(65536)
            except TimeoutError:
                connected.sendall(bytes([next(rest)]))
                continue
            except OSError:
                break
            answer += more
            if not more:
                break
        assert time.monotonic() < began + 20
    if "body" in part:
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "body_timeout"
    assert server.chat().status_code == 200
