"""Who may ask: web pages by their origin, everybody by a key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.server.conftest import Serve
from tests.server.running import Server, error_of

POSTS = ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"]
KIND = {"Content-Type": "application/json"}

# Other web pages

LOCAL = ["http://localhost", "http://localhost:3000", "https://127.0.0.1:8443", "http://[::1]:80"]
FOREIGN = [
    "https://example.org",
    "http://localhost.example.org",
    "null",
    "http://127.0.0.1.example.org",
    "file://",
]


def preflight(server: Server, origin: str, header: str = "authorization,content-type") -> str | None:
    headers = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": header,
    }
    response = server.http.options("/v1/chat/completions", headers=headers)
    assert response.status_code < 500
    if response.status_code >= 400:
        error_of(response, response.status_code)
        return None
    allowed: str | None = response.headers.get("access-control-allow-origin")
    return allowed


def test_pages_of_this_machine_may_ask(server: Server) -> None:
    for origin in LOCAL:
        assert preflight(server, origin) == origin
        answer = server.get("/health", headers={"Origin": origin})
        assert answer.headers["access-control-allow-origin"] == origin


@pytest.mark.parametrize("origin", FOREIGN)
def test_pages_from_elsewhere_may_not(server: Server, origin: str) -> None:
    """A browser asks first only for some requests: no other one is answered either."""
    assert preflight(server, origin) is None
    for path in ("/v1/completions", "/metrics", "/health", "/"):
        method, body = ("POST", b'{"prompt": "x"}') if path == "/v1/completions" else ("GET", None)
        for headers in ({}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}):
            response = server.http.request(
                method, path, content=body, headers={"Origin": origin, **headers, **KIND}
            )
            assert error_of(response, 403)["code"] == "cross_origin"
            assert "access-control-allow-origin" not in response.headers


def test_the_servers_own_page_may_ask_behind_a_proxy(serve: Serve) -> None:
    server = serve("--ctx-size", 64, "--allowed-host", "model.example", "--cors-origin", "http://a.b")

    def status(**headers: str) -> int:
        given = {name.replace("_", "-"): value for name, value in headers.items()} | KIND
        return server.post("/v1/completions", {"prompt": "x", "max_tokens": 1}, headers=given).status_code

    page = "https://model.example"
    assert status(Origin=page, Host="model.example") == 200
    assert status(Origin=f"{page}:8443", Host="model.example:8443") == 200
    assert status(Origin=page, Sec_Fetch_Site="same-origin") == 200  # the proxy has changed the Host
    assert status(Origin=page) == status(Origin=f"{page}:8443", Host="model.example") == 403
    assert status(Origin="https://other.example", Host="model.example") == 403
    assert status(Origin="http://a.b", Sec_Fetch_Site="cross-site") == 200
    assert status(Host="model.example") == 200  # no browser


def test_an_allowed_page_may_send_any_header(server: Server) -> None:
    """OpenAI's client sends a dozen of its own."""
    asked = "authorization, content-type, x-stainless-os, x-stainless-retry-count, helicone-auth"
    headers = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": asked}
    response = server.http.options("/v1/chat/completions", headers={"Origin": LOCAL[0], **headers})
    assert response.status_code == 200
    allowed = response.headers["access-control-allow-headers"].split(",")
    assert {name.strip() for name in asked.split(",")} <= {name.strip().lower() for name in allowed}
    assert preflight(server, FOREIGN[0], asked) is None


def test_other_origins_by_flag(serve: Serve) -> None:
    server = serve("--ctx-size", 64, "--cors-origin", FOREIGN[0], "--cors-origin", "http://a.b", key="k")
    assert preflight(server, FOREIGN[0]) == FOREIGN[0]  # without a key: browsers send none
    assert preflight(server, "http://a.b") == "http://a.b"
    assert preflight(server, LOCAL[0]) is None
    refused = server.get("/v1/models", headers={"Origin": FOREIGN[0]})
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == FOREIGN[0]


def test_all_origins(serve: Serve) -> None:
    server = serve("--ctx-size", 64, "--cors-origin", "*")
    assert preflight(server, FOREIGN[0]) == "*"


# Keys

SECRET = "sesame-open-4711"
COMMENT = "of the laptop"


@pytest.fixture(scope="module")
def locked(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(f"# {COMMENT}\n\n{SECRET}\n{SECRET}-file\n  second key  \n  #{COMMENT}\n")
    with Server(tiny_bundle, "--ctx-size", 64, "--api-key-file", keys) as server:
        yield server


def test_open_without_a_key(locked: Server) -> None:
    for path in ("/", "/health", "/static/app.js"):
        assert locked.get(path).status_code == 200, path


def refused(locked: Server, path: str, authorization: str | bytes | None) -> None:
    headers = {**KIND, **({} if authorization is None else {"Authorization": authorization})}
    response = locked.http.request("POST" if path in POSTS else "GET", path, headers=headers)
    error = error_of(response, 401)
    assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
    assert response.headers["www-authenticate"] == "Bearer"
    assert SECRET not in response.text


@pytest.mark.parametrize(
    "path", ["/v1/models", "/props", "/metrics", "/openapi.json", "/memory/x", "/nothing", *POSTS]
)
def test_every_path_is_closed_without_the_right_key(locked: Server, path: str) -> None:
    refused(locked, path, None)
    refused(locked, path, "Bearer wrong")


@pytest.mark.parametrize(
    "header",
    [
        *("", "Bearer", SECRET, f"Basic {SECRET}", f"Bearer {SECRET}x", f"Bearer {SECRET[:-1]}"),
        *(f"Bearer {SECRET.upper()}", f"Bearer {SECRET},second key", b"Bearer \xff\xfe"),
        *("Bearer " + "x" * 10_000, f"Bearer # {COMMENT}", f"Bearer #{COMMENT}", f"Bearer {COMMENT}"),
    ],
)
def test_what_is_no_key_opens_nothing(locked: Server, header: str | bytes) -> None:
    refused(locked, "/v1/models", header)


def test_every_key_opens(locked: Server) -> None:
    for authorization in (f"Bearer {SECRET}", f"bearer {SECRET}-file", "BEARER second key"):
        headers = {"Authorization": authorization}
        assert locked.get("/v1/models", headers=headers).status_code == 200
        body = {"prompt": "x", "max_tokens": 1}
        assert locked.post("/v1/completions", body, headers=headers).status_code == 200


def test_a_key_by_the_environment(serve: Serve) -> None:
    server = serve("--ctx-size", 64, code="import os; os.environ['H2O_API_KEY'] = 'from-the-environment'")
    assert server.get("/v1/models").status_code == 401
    headers = {"Authorization": "Bearer from-the-environment"}
    assert server.get("/v1/models", headers=headers).status_code == 200
