"""The page is for everybody: safe, readable, on any screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.server.page.browser import watched_page
from tests.server.page.person import (
    ANSWER,
    HTML,
    answer_once,
    ask,
    attach,
    choose,
    open_memory,
    send,
    wait_until_answered,
    whole,
)
from tests.server.running import Server

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


def test_html_is_text(page: Page) -> None:
    answer_once(page, whole(HTML))
    attach(page, f"{HTML}.txt", (HTML * 200).encode())
    send(page, HTML)
    wait_until_answered(page)
    assert page.locator(ANSWER).text_content() == HTML
    assert page.locator(".turn .question .text").text_content() == HTML
    page.locator(".question summary").click()
    page.get_by_role("button", name="New chat").click()
    ask(page, "What is this?", HTML * 200)
    open_memory(page)
    page.locator("#tokens .kept").first.wait_for()
    assert page.locator("main img, main b, #memory img, #memory b").count() == 0
    assert page.evaluate("window.hacked") is None


def test_a_phone(browser: Browser, server: Server, long_text: str) -> None:
    def check() -> None:
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert page.evaluate("document.documentElement.scrollHeight") <= 640  # only the conversation scrolls

    phone = {"viewport": {"width": 360, "height": 640}, "has_touch": True, "is_mobile": True}
    with watched_page(browser, server.url, **phone) as page:
        check()
        choose(page, max_tokens=30, temperature=0)
        ask(page, "W" * 200 + " what is this?", long_text[:6000])
        page.get_by_role("button", name="Show memory").tap()
        page.locator("#tokens .kept").first.tap()
        page.get_by_text("remembered by").first.wait_for()
        check()
        assert page.locator("#memory").bounding_box() == {"x": 0, "y": 0, "width": 360, "height": 640}
        page.get_by_role("button", name="Close").tap()
        answer_once(page, whole("- one\n" * 60))
        ask(page, "And a long list?")
        check()
        page.get_by_role("button", name="Settings").tap()
        check()


def test_nothing_is_cut_on_a_narrow_screen(browser: Browser, server: Server) -> None:
    with watched_page(browser, server.url, viewport={"width": 280, "height": 653}) as page:
        page.get_by_text("tokens of context").wait_for()
        answer_once(
            page,
            whole(f"# {'W' * 80}\n\n```\n{'x' * 200}\n```\n\n|{'a|' * 30}\n|{'-|' * 30}\n\n- {'W' * 80}"),
        )
        ask(page, "W" * 200)
        assert page.evaluate("document.documentElement.scrollWidth") <= 280
        cut = "all => all.filter((each) => each.scrollWidth > each.clientWidth + 1).map((each) => each.textContent)"
        assert (
            page.locator(".top, .top *, .log, .answer h3, .answer li, .answer .code").evaluate_all(cut) == []
        )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read(browser: Browser, server: Server, scheme: str) -> None:
    """Contrast of the text on each shade, by WCAG's formula: at least 4.5."""
    with watched_page(browser, server.url, color_scheme=scheme) as page:
        page.get_by_text("tokens of context").wait_for()
        ratios = page.evaluate("""() => {
          const card = document.createElement("div");
          card.className = "memory";
          document.body.append(card);
          const pen = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
          const light = (...layers) => {
            for (const color of layers) { pen.fillStyle = color; pen.fillRect(0, 0, 1, 1); }
            const [r, g, b] = [...pen.getImageData(0, 0, 1, 1).data].map((value) => {
              const c = value / 255;
              return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
            });
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
          };
          const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
          const base = getComputedStyle(card).backgroundColor;
          const ink = light(getComputedStyle(card).color);
          return [1, 2, 3, 4, 5, 6, 7, 8].map((step) => {
            const token = document.createElement("span");
            token.className = `kept k${step}`;
            card.append(token);
            return ratio(light(base, getComputedStyle(token).backgroundColor), ink);
          });
        }""")
        assert min(ratios) >= 4.5, ratios
