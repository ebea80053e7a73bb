"""Several conversations: each has its history, answers go on behind others, and a closed one ends its request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.server.page.person import (
    ANSWER,
    HTML,
    SLOW_FILES,
    ask,
    attach,
    choose,
    choose_file,
    send,
    sent,
    shown,
    wait_until_answered,
    words,
)
from tests.server.running import Server, wait_for

pytestmark = pytest.mark.slow
PACE = 0.005
FLAGS = ("--slots", 2)

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page


def new_chat(page: Page) -> None:
    """By keyboard, as all that is done while an answer comes: a click would wait until the page stands still."""
    page.get_by_role("button", name="New chat").press("Enter")


def tabs(page: Page) -> Locator:
    return page.get_by_role("tab")


def selected(page: Page) -> str:
    return page.locator("[role=tab][aria-selected=true]").inner_text()


def test_each_has_its_own_history_and_its_own_message(page: Page) -> None:
    assert tabs(page).count() == 0  # one conversation needs none
    first = ask(page, "Hello.")
    page.get_by_label("Message", exact=True).fill("half a")
    attach(page, "one.txt", b"one")
    new_chat(page)
    assert page.get_by_label("Message", exact=True).input_value() == ""
    assert page.locator(".composer .files li, .turn").count() == 0
    assert tabs(page).all_inner_texts() == ["Hello.", "New chat"]
    assert len(sent(page, lambda: ask(page, HTML))["messages"]) == 1
    assert tabs(page).all_inner_texts() == ["Hello.", HTML]
    tabs(page).first.click()
    assert shown(page) == first
    assert page.get_by_label("Message", exact=True).input_value() == "half a"
    messages = sent(page, lambda: page.get_by_role("button", name="Send").click())["messages"]
    assert [words(message["content"]) for message in messages] == ["Hello.", first, "one half a"]
    wait_until_answered(page)
    new_chat(page)
    new_chat(page)  # the empty one is in view already
    assert tabs(page).count() == 3


def test_a_file_belongs_to_the_chat_for_which_it_was_chosen(page: Page) -> None:
    """Also where another is in view once it is read; and Enter, pressed before, sends nothing there."""
    ask(page, "Hello.")
    page.evaluate(SLOW_FILES)
    choose_file(page, "one.txt", b"one")
    send(page, "half a")
    new_chat(page)
    page.get_by_label("Message", exact=True).fill("other")
    choose_file(page, "two.txt", b"two")
    page.evaluate("window.go()")
    page.get_by_role("button", name="Remove two.txt").wait_for()  # files are read one after the other
    assert page.locator(".composer .files li").count() == 1
    assert page.locator(".turn").count() == 0
    tabs(page).first.click()
    page.get_by_role("button", name="Remove one.txt").wait_for()
    assert page.locator(".composer .files li").count() == 1
    assert page.get_by_label("Message", exact=True).input_value() == "half a"
    assert page.locator(".turn").count() == 1


@pytest.mark.usefixtures("slow_answers")
def test_two_answers_come_side_by_side(page: Page, server: Server) -> None:
    choose(page, max_tokens=8000)
    send(page, "Hello.")
    new_chat(page)
    send(page, "Good morning.")
    wait_for(lambda: sum(slot["is_processing"] for slot in server.get("/slots").json()) == 2)
    wait_for(lambda: len(page.locator(ANSWER).text_content() or "") > 10)
    assert tabs(page).all_inner_texts() == ["Hello. (answering)", "Good morning. (answering)"]
    tabs(page).first.press("Enter")
    before = page.locator(ANSWER).text_content() or ""
    wait_for(lambda: len(page.locator(ANSWER).text_content() or "") > len(before))
    page.get_by_role("button", name="Stop").press("Enter")
    wait_until_answered(page)
    assert tabs(page).all_inner_texts() == ["Hello.", "Good morning. (answering)"]
    assert page.get_by_role("button", name="Send").is_visible()
    tabs(page).last.press("Enter")
    assert page.get_by_role("button", name="Stop").is_visible()
    page.get_by_role("button", name="Delete chat").press("Enter")
    server.wait_until_idle()  # its request has ended
    assert tabs(page).count() == 0
    assert page.locator(".question").inner_text().endswith("Hello.")


def test_tabs_by_keyboard(page: Page) -> None:
    for name in ("one", "two", "three"):
        new_chat(page)
        ask(page, name)
    tabs(page).last.focus()
    for key, name in (("ArrowLeft", "two"), ("Home", "one"), ("ArrowLeft", "three"), ("ArrowRight", "one")):
        page.keyboard.press(key)
        assert selected(page) == name
        assert page.locator(":focus").inner_text() == name
        assert page.locator(".question .text").inner_text() == name
    assert page.locator("[role=tab][tabindex='0']").count() == 1
    page.keyboard.press("Delete")
    assert tabs(page).all_inner_texts() == ["two", "three"]
    assert selected(page) == page.locator(":focus").inner_text() == "two"
    page.keyboard.press("End")
    page.keyboard.press("Delete")
    assert tabs(page).count() == 0
    assert page.locator("#prompt:focus").count() == 1
    assert page.locator(".question .text").inner_text() == "two"


@pytest.mark.nightly
def test_each_stays_where_one_reads(page: Page) -> None:
    choose(page, max_tokens=500)
    ask(page, "Hello.")
    log = page.locator(".log")
    log.evaluate("log => (log.scrollTop = 100)")
    new_chat(page)
    ask(page, "Good morning.")
    end = log.evaluate("log => log.scrollTop")
    tabs(page).first.click()
    assert log.evaluate("log => log.scrollTop") == 100
    tabs(page).last.click()
    assert log.evaluate("log => log.scrollTop") == end > 100
