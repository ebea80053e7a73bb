"""Which names the server answers to: a page from elsewhere that points its own name here is not let in."""

from __future__ import annotations

import json
import socket
from ipaddress import IPv6Address
from pathlib import Path

import pytest
from tests.server.conftest import Serve
from tests.server.running import Server, request, wait_for

from h2o_server.serve import bind

PATHS = ["/", "/health", "/props", "/metrics", "/v1/models", "/openapi.json", "/static/app.js", "/nothing"]
OWN = ["localhost", "localhost:9", "LocalHost:65535", "localhost.", "a.localhost", "127.0.0.1:1", "[::1]:80"]
FOREIGN = [
    *("evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example"),
    *("evil-localhost", "192.168.1.1", "8.8.8.8:80", "[2001:db8::1]"),
]
BROKEN = [
    *("a b", "localhost:", "localhost:x", "localhost:99999", "::1", "[::1"),
    *("user@localhost", "localhost/x", '"'),
]


def asked(server: Server, raw: bytes) -> tuple[int, dict[str, str]]:
    """Status and error of the answer to a request; no error where it is no JSON or has none."""
    with server.connection(10) as connected:
        connected.sendall(raw)
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += connected.recv(65536)
        head, _, body = answer.partition(b"\r\n\r\n")
        status = int(head.split()[1])
        if status >= 400:
            while not body.endswith(b"}}"):
                body += connected.recv(65536)
        return status, json.loads(body)["error"] if status >= 400 else {}


def get(server: Server, host: str, path: str = "/health", **headers: str) -> tuple[int, dict[str, str]]:
    return asked(server, request("GET", path, Host=host, Content_Type="", Content_Length="", **headers))


@pytest.mark.parametrize("host", OWN)
def test_own_names(server: Server, host: str) -> None:
    assert get(server, host)[0] == 200


@pytest.mark.parametrize("host", FOREIGN)
def test_names_of_others(server: Server, host: str) -> None:
    status, error = get(server, host)
    assert (status, error["code"]) == (403, "unknown_host")
    assert "--allowed-host" in error["message"]


@pytest.mark.parametrize("path", PATHS)
def test_every_path_is_closed_to_a_rebound_page(server: Server, path: str) -> None:
    """With the origin that its browser sends, which is the very Host."""
    host = f"evil.example:{server.port}"
    assert get(server, host, path, Origin=f"http://{host}")[0] == 403


@pytest.mark.parametrize("host", BROKEN)
def test_what_is_no_name(server: Server, host: str) -> None:
    status, error = get(server, host)
    assert (status, error["code"]) == (400, "invalid_host")


@pytest.mark.parametrize("lines", [b"", b"Host: localhost\r\nHost: localhost\r\n", b"Host: \r\n"])
def test_none_or_two(server: Server, lines: bytes) -> None:
    status, error = asked(server, b"GET /health HTTP/1.1\r\n" + lines + b"\r\n")
    assert (status, error["code"]) == (400, "invalid_host")


def test_the_oldest_protocol_knows_no_host(server: Server) -> None:
    assert asked(server, b"GET /health HTTP/1.0\r\n\r\n")[0] == 200


def test_further_names_by_flag(serve: Serve) -> None:
    server = serve("--ctx-size", 64, "--allowed-host", "model.example", "--allowed-host", "[2001:db8::1]")
    for host in ("model.example", "Model.Example:443", "[2001:db8::1]:8080", "localhost"):
        assert get(server, host)[0] == 200, host
    assert get(server, "evil.example")[0] == 403


def test_any_name_by_flag(serve: Serve) -> None:
    server = serve("--ctx-size", 64, "--allowed-host", "*")
    assert get(server, "whoever.example")[0] == 200
    assert asked(server, b"GET /health HTTP/1.1\r\n\r\n")[0] == 400


def test_a_key_keeps_others_out_already(serve: Serve) -> None:
    server = serve("--ctx-size", 64, key="k")
    assert get(server, "proxy.example")[0] == 200
    assert get(server, "proxy.example", "/v1/models")[0] == 401
    named = serve("--ctx-size", 64, "--allowed-host", "proxy.example", key="k")
    assert get(named, "proxy.example")[0] == 200
    assert get(named, "evil.example")[0] == 403


def test_beyond_loopback_addresses_and_the_machines_name_are_its_own(serve: Serve) -> None:
    """Whoever asks by an address was not led here by a name; the address may be that of a container's host."""
    server = serve("--ctx-size", 64, "--host", "0.0.0.0")
    for host in ("localhost", "127.0.0.1", "192.168.1.5:8080", "[fe80::1]", socket.gethostname()):
        assert get(server, host)[0] == 200, host
    assert get(server, "evil.example")[0] == 403


def test_a_proxy_names_its_client_by_an_address_alone(serve: Serve) -> None:
    server = serve("--ctx-size", 64)
    for client in ("203.0.113.9", "2001:db8::7", "203.0.113.8 POST /v1/made-up 200", "a\u0085b"):
        answer = server.get("/v1/models", headers={"X-Forwarded-For": client.encode()})
        assert answer.status_code == 200
    wait_for(lambda: server.log.count("GET /v1/models") == 4)
    asked = (line.partition(" GET /v1/models") for line in server.log.split("\n"))
    clients = [before.split()[3:] for before, found, _ in asked if found]
    assert clients == [["203.0.113.9"], ["2001:db8::7"], ["-"], ["-"]]


def link_local() -> str:
    """An address of this machine that needs its interface beside it."""
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except OSError:
        lines = []
    for address, _, _, scope, _, interface in map(str.split, lines):
        if scope == "20":
            return f"{IPv6Address(bytes.fromhex(address))}%{interface}"
    pytest.skip("this machine has no link-local address")


def test_an_address_with_its_interface_is_listened_on() -> None:
    host = link_local()
    with bind(host, 0) as listener, socket.socket(socket.AF_INET6) as client:
        client.connect(listener.getsockname())


def test_all_addresses_are_those_of_ipv4_too() -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6, or IPv6 alone")
    with bind("::", 0) as listener:
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, listener.getsockname()[1])).close()
