"""What the page tells of the server's slots."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from tests.server.page.person import choose, send, wait_until_answered

if TYPE_CHECKING:
    from playwright.sync_api import Page

PACE = 0.005


@pytest.mark.usefixtures("slow_answers")
def test_a_slot_is_idle_then_answers_then_holds_the_conversation(page: Page) -> None:
    page.get_by_text("What the server is doing").click()
    lines = page.locator("#slot-list li")
    lines.first.wait_for()
    assert lines.count() == 1
    choose(page, max_tokens=8000)
    send(page, "Hello.")
    page.get_by_text(re.compile(r"Slot 0: answering, [\d,]+ tokens, [\d.,]+ tokens/s")).wait_for()
    page.keyboard.press("Escape")
    wait_until_answered(page)
    page.get_by_text(re.compile(r"Slot 0: idle, [\d,]+ tokens in its cache")).wait_for()


def test_a_prompt_that_is_read(page: Page) -> None:
    work = {"id": 0, "n_ctx": 8192, "is_processing": True, "n_past": 0, "id_task": "a", "n_decoded": 0}
    work |= {"n_prompt_tokens": 4000, "n_prompt_tokens_new": 4000, "n_prompt_tokens_processed": 1024}
    page.route("**/slots", lambda route: route.fulfill(json=[work]))
    page.get_by_text("What the server is doing").click()
    page.get_by_text("Slot 0: reading, 1,024 of 4,000 tokens").wait_for()
    page.unroute("**/slots")
