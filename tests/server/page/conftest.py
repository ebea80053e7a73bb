"""The page at /, as a person with a browser meets it: the browser, the server, the opened page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.conftest import EXAMPLE
from tests.server.page.browser import chromium, watched_page
from tests.server.page.person import CHOOSE
from tests.server.running import Pace, Server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Not for longer than a module: playwright keeps an event loop running, beside which no other can be."""
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def pace(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pace:
    """Of the module's server: `PACE` seconds for a token, where the module says so.

    Else an answer could end before the browser has looked at it, on a machine that gives the server more time.
    """
    return Pace(tmp_path_factory.mktemp("pace"), getattr(request.module, "PACE", 0.0))


@pytest.fixture
def slow_answers(pace: Pace, request: pytest.FixtureRequest) -> Iterator[None]:
    """Of a test that waits for what an answer does: the browser draws every token that comes meanwhile."""
    pace.set(0.05)
    yield
    pace.set(getattr(request.module, "PACE", 0.0))


@pytest.fixture(scope="module")
def server(
    browser: Browser, tiny_bundle: Path, pace: Pace, request: pytest.FixtureRequest
) -> Iterator[Server]:
    """Named after the browser: without one there is nothing to serve. With the module's `FLAGS`, if it has some."""
    with Server(tiny_bundle, *getattr(request.module, "FLAGS", ()), code=pace.code) as started:
        yield started


@pytest.fixture
def page(browser: Browser, server: Server) -> Iterator[Page]:
    """The page, with short and repeatable answers."""
    with watched_page(browser, server.url) as opened:
        opened.evaluate(CHOOSE, {"temperature": 0, "max_tokens": 24})
        yield opened
    server.wait_until_idle()


@pytest.fixture
def long_text(request: pytest.FixtureRequest) -> str:
    """More than four chunks of 1,024 tokens, of which the cache holds nothing."""
    text = (EXAMPLE / "heldout.txt").read_text(encoding="utf-8")
    return f"{request.node.name}\n{text[:16_000]}"
