"""Pictures of the server's page: serve_chat.png, serve_memory.png and serve_phone.png.

    python docs/figures/serve_page.py BUNDLE

Needs playwright and Chromium. The font is Inter where it is installed (Debian: fonts-inter).
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

HERE = Path(__file__).parent
TEXT = HERE.parents[1] / "examples" / "tiny-llama" / "heldout.txt"
CHARACTERS = 15_000
QUESTION = "Document the class RSTStateMachine."


def main() -> None:
    command = ["h2o-serve", sys.argv[1], "--port", "0", "--alias", "tiny-llama"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            url = next(
                found[1] for line in server.stderr if (found := re.search(r"listening on (\S+)", line))
            )
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
                take_pictures(browser, url)
                browser.close()
        finally:
            server.terminate()


def take_pictures(browser: Browser, url: str) -> None:
    page = opened(browser, url, viewport={"width": 1200, "height": 760})
    ask(page, QUESTION)
    shoot(page, "serve_chat.png")

    page = opened(browser, url, viewport={"width": 1200, "height": 760}, color_scheme="dark")
    ask(page, QUESTION, start=1806)
    show_memory(page)
    page.locator("#tokens p > span").nth(3).hover()
    shoot(page, "serve_memory.png")

    page = opened(browser, url, viewport={"width": 360, "height": 720}, device_scale_factor=2, is_mobile=True)
    ask(page, QUESTION, start=164)
    show_memory(page)
    shoot(page, "serve_phone.png")


def opened(browser: Browser, url: str, **options: Any) -> Page:
    page = browser.new_context(**options).new_page()
    page.goto(url)
    page.get_by_text("tokens of context").wait_for()
    page.evaluate("document.documentElement.style.setProperty('--sans', 'Inter, system-ui')")
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Temperature").fill("0.5")
    page.get_by_label("Maximum tokens").fill("50")
    page.get_by_role("button", name="Done").click()
    return page


def ask(page: Page, question: str, start: int = 0) -> None:
    """start: where the text begins; no two pictures share a beginning, which the server would have cached."""
    text = TEXT.read_text(encoding="utf-8")[start : start + CHARACTERS]
    report = {"name": "report.txt", "mimeType": "text/plain", "buffer": text.encode()}
    page.locator("#file").set_input_files(report)
    page.get_by_label("Message", exact=True).fill(question)
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Show memory").wait_for()


def show_memory(page: Page) -> None:
    page.get_by_role("button", name="Show memory").click()
    page.get_by_label("Layer").fill("1")
    page.get_by_label("After").fill("16")  # what the fourth chunk's first tile sees
    page.locator("#tokens section").nth(4).wait_for(state="attached")


def shoot(page: Page, name: str) -> None:
    page.wait_for_timeout(300)  # for the last shades
    page.screenshot(path=HERE / name)


if __name__ == "__main__":
    main()
