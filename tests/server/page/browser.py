"""A headless Chromium, and eyes on everything that a page should not do."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# The headless shell first: without the windows of a whole Chromium, a page takes a third of the processor time.
_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
_STATUS = re.compile(r"the server responded with a status of (\d+)")


@contextmanager
def chromium() -> Iterator[Browser]:
    """Skips the test where the browser or its driver is missing."""
    api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install playwright"
    )
    program = next(filter(_runs, _NAMES), None)
    if program is None:
        pytest.skip("there is no Chromium: install the package chromium-headless-shell")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which(program))
        yield browser
        browser.close()


def _runs(name: str) -> bool:
    """Some systems have a program of that name which only tells how to install it."""
    program = shutil.which(name)
    return program is not None and subprocess.run([program, "--version"], capture_output=True).returncode == 0


@contextmanager
def watched_page(browser: Browser, url: str, **options: Any) -> Iterator[Page]:
    """A page at `url`; fails when it complains, or asks anyone but its server for anything."""
    with browser.new_context(**options) as context:
        context.set_default_timeout(60_000)
        page = context.new_page()
        watch = Watch(page)
        page.goto(url)
        yield page
        watch.check(page.url)


class Watch:
    """What a page's console said and whom it asked."""

    def __init__(self, page: Page) -> None:
        self._complaints: list[str] = []
        self._asked: set[str] = set()  # hosts
        page.on(
            "console", lambda message: self._on_console(message.type, message.text, message.location["url"])
        )
        page.on("pageerror", lambda error: self._complaints.append(str(error)))
        page.on("request", lambda request: self._asked.add(urlsplit(request.url).netloc))

    def check(self, url: str) -> None:
        """url: of the page."""
        assert self._complaints == [], self._complaints  # this module's assertions are not rewritten
        assert self._asked == {urlsplit(url).netloc}

    def _on_console(self, kind: str, text: str, source: str) -> None:
        # The browser itself notes every refused or lost request; what the page makes of those is tested.
        refused = _STATUS.search(text)
        expected = (refused and int(refused[1]) in (400, 401, 404, 503)) or "net::ERR" in text
        if kind in ("error", "warning") and not (expected and "/static/" not in source):
            self._complaints.append(text)
