"""What a model thinks is shown, folded behind its answer, and not told to it again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.server.conftest import with_template
from tests.server.page.person import (
    answer_once,
    ask,
    choose,
    events,
    piece,
    send,
    sent,
    shown,
    wait_until_answered,
)
from tests.server.running import Pace, Server, wait_for
from tests.server.scripted import script

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ENDLESS = "<think>\nA greeting? " + "hello " * 6000
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}{# <think> </think> #}"
DONE = b"data: [DONE]\n\n"
THOUGHT = ".thoughts .text"


@pytest.fixture(scope="module")
def server(
    browser: Browser, tiny_bundle: Path, pace: Pace, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """Its model thinks, and does not come to an end."""
    folder = tmp_path_factory.mktemp("thinks")
    (folder / "template.jinja").write_text(TEMPLATE)
    bundle = with_template(tiny_bundle, folder / "bundle", folder / "template.jinja")
    with Server(bundle, code=script([], ENDLESS) + pace.code) as started:
        yield started


def test_they_are_folded_behind_the_answer(page: Page) -> None:
    thoughts = piece("", delta={"reasoning_content": "A *greeting*?"})
    answer_once(page, events(thoughts, piece("Good morning."), piece("", finish_reason="stop")) + DONE)
    assert ask(page, "Hello.") == "Good morning."
    for _ in range(2):  # before and after a reload
        assert not page.locator(THOUGHT).is_visible()
        page.get_by_text("Thoughts", exact=True).click()
        assert page.locator(THOUGHT).inner_text() == "A *greeting*?"
        page.reload()
    assert shown(page) == "Good morning."
    told = sent(page, lambda: ask(page, "And now?"))["messages"]
    assert [message["content"] for message in told] == ["Hello.", "Good morning.", "And now?"]


@pytest.mark.usefixtures("slow_answers")
def test_they_are_in_view_while_they_come_until_the_person_closes_them(page: Page) -> None:
    choose(page, max_tokens=8000)
    send(page, "Hello.")
    thought, title = page.locator(THOUGHT), page.get_by_text("Thinking …")
    thought.get_by_text("A greeting? hello").wait_for()
    title.press("Enter")
    seen = len(thought.text_content() or "")
    wait_for(lambda: len(thought.text_content() or "") > seen)
    assert not thought.is_visible()
    page.keyboard.press("Escape")
    wait_until_answered(page)
    assert page.get_by_text("Stopped before the answer began.").is_visible()
    assert page.get_by_text("Thoughts", exact=True).is_visible()


@pytest.mark.nightly
def test_a_limit_that_ends_them(page: Page) -> None:
    choose(page, max_tokens=20)
    assert ask(page, "Hello.") == ""
    assert page.locator(THOUGHT).inner_text().startswith("A greeting? hello")
    assert "at the limit" in page.locator(".figures").inner_text()


def test_thinking_can_be_switched(page: Page) -> None:
    choose(page, max_tokens=3)
    assert "chat_template_kwargs" not in sent(page, lambda: ask(page, "Hello."))
    choose(page, thinking="off")
    page.reload()
    page.get_by_text("Chunks of 1,024").wait_for()  # the settings are there again
    switched = sent(page, lambda: ask(page, "Hello."))["chat_template_kwargs"]
    assert switched == {"enable_thinking": False, "thinking": False}
