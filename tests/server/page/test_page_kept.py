"""What the browser keeps: conversations and unsent messages, over a reload, in two pages, and when it cannot."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.server.page.browser import watched_page
from tests.server.page.person import (
    ANSWER,
    CHAT,
    HTML,
    answer_once,
    ask,
    attach,
    figures,
    reload,
    send,
    sent,
    shown,
    whole,
)
from tests.server.running import Server, wait_for

pytestmark = pytest.mark.slow
PACE = 0.005

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

KEPT = "Object.keys(localStorage).filter((name) => !name.startsWith('h2o-settings'))"

CHATS = "JSON.stringify(Object.entries(localStorage).filter(([name]) => name.startsWith('h2o-chat-')).sort())"

FILL = """() => {
  for (let size = 2 ** 23; size >= 1; size /= 2) {
    try { for (let part = 0; ; part++) localStorage.setItem(`other-${size}-${part}`, "x".repeat(size)); }
    catch { /* no room for one of this size */ }
  }
}"""
EMPTY = """() => {
  for (const name of Object.keys(localStorage)) if (name.startsWith("other")) localStorage.removeItem(name);
}"""


def message(page: Page) -> str:
    return page.get_by_label("Message", exact=True).input_value()


def tabs(page: Page) -> list[str]:
    return page.get_by_role("tab").all_inner_texts()


def test_a_reload_keeps_conversations_and_what_is_written(page: Page) -> None:
    first = ask(page, "Hello.", HTML)
    before = figures(page)
    page.get_by_role("button", name="New chat").click()
    answer_once(page, whole("**Bold** answer"))
    ask(page, "Second.")
    page.get_by_label("Message", exact=True).fill("half a")
    attach(page, "one.txt", b"one")
    reload(page)
    assert tabs(page) == ["Hello.", "Second."]
    assert page.locator(f"{ANSWER} strong").inner_text() == "Bold"
    assert message(page) == "half a"
    assert page.get_by_role("button", name="Remove one.txt").is_visible()
    page.get_by_role("tab").first.click()
    assert (shown(page), figures(page), message(page)) == (first, before, "")
    messages = sent(page, lambda: ask(page, "And?"))["messages"]
    assert [each["content"] for each in messages[::2]] == [f"{HTML}\n\nHello.", "And?"]
    reload(page)
    assert page.locator(".turn").count() == 2  # and it is the one that was in view


def test_a_reload_in_mid_answer(page: Page) -> None:
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Maximum tokens").fill("8000")
    page.get_by_role("button", name="Done").click()
    send(page, "Hello.")
    wait_for(lambda: len(page.locator(ANSWER).text_content() or "") > 20)
    reload(page)
    page.get_by_text("The answer stopped early").wait_for()
    half = shown(page)
    assert half
    answer_once(page, whole("Well."))
    page.get_by_role("button", name="Try again").click()
    page.get_by_text("Well.").wait_for()
    assert not page.get_by_text("The answer stopped early").is_visible()


def test_all_is_deleted_on_request(page: Page) -> None:
    ask(page, "Hello.")
    page.get_by_role("button", name="New chat").click()
    ask(page, "Second.")
    page.get_by_role("button", name="Delete chat").click()
    assert len(page.evaluate(KEPT)) == 1
    page.get_by_label("Message", exact=True).fill("half a")
    wait_for(lambda: len(page.evaluate(KEPT)) == 2)
    page.get_by_role("button", name="Settings").click()
    page.once("dialog", lambda dialog: dialog.dismiss())
    page.get_by_role("button", name="Delete all chats").click()
    assert len(page.evaluate(KEPT)) == 2
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete all chats").click()
    page.get_by_role("button", name="Done").click()
    assert page.evaluate(KEPT) == []
    assert message(page) == ""
    reload(page)
    assert page.locator(".turn, [role=tab]:visible").count() == 0
    assert page.evaluate(KEPT) == []


def test_two_pages_show_the_same(page: Page) -> None:
    other = page.context.new_page()
    other.goto(page.url)
    first = ask(page, "Hello.")
    other.get_by_role("tab", name="Hello.").click()
    wait_for(lambda: shown(other) == first)
    second = ask(other, "And?")
    page.locator(".question", has_text="And?").wait_for()
    wait_for(lambda: shown(page) == second)
    messages = sent(page, lambda: ask(page, "Third."))["messages"]
    assert [each["content"] for each in messages[::2]] == ["Hello.", "And?", "Third."]
    other.get_by_label("Message", exact=True).fill("half a")
    page.get_by_role("button", name="New chat").click()
    ask(page, "New.")
    page.get_by_role("tab", name="Hello.").click()
    page.get_by_role("button", name="Delete chat").click()
    wait_for(lambda: other.locator(".turn").count() == 0)
    assert message(other) == "half a"
    other.close()


@pytest.mark.nightly
def test_two_pages_that_go_on_at_once_lose_nothing(page: Page) -> None:
    ask(page, "Hello.")
    other = page.context.new_page()
    other.goto(page.url)
    other.locator(".turn").wait_for()
    page.route(CHAT, lambda route: None)  # the answer does not come
    send(page, "One.")
    other.locator(".question", has_text="One.").wait_for()
    ask(other, "Two.")
    wait_for(lambda: page.evaluate(CHATS) == other.evaluate(CHATS))  # pages hear of each other a little later
    page.keyboard.press("Escape")
    wait_for(lambda: len(tabs(page)) == 2)
    reload(page)
    found = []
    for tab in page.get_by_role("tab").all():
        tab.click()
        found.append(page.locator(".question .text").all_inner_texts())
    assert sorted(found) == [["Hello.", "One."], ["Hello.", "One.", "Two."]]
    other.close()


@pytest.mark.nightly
def test_a_full_storage_is_said_and_breaks_nothing(page: Page) -> None:
    ask(page, "Hello.")
    page.evaluate(FILL)
    assert not page.locator("#not-kept").is_visible()
    first = ask(page, "And?")
    page.get_by_text("This browser's storage is full").wait_for()
    messages = sent(page, lambda: ask(page, "Third."))["messages"]
    assert [each["content"] for each in messages[::2]] == ["Hello.", "And?", "Third."]
    assert first.split() == messages[3]["content"].split()
    page.evaluate(EMPTY)
    ask(page, "Fourth.")
    assert not page.locator("#not-kept").is_visible()
    reload(page)
    assert page.locator(".turn").count() == 4


def test_records_that_cannot_be_read_are_none(page: Page) -> None:
    ask(page, "Hello.")
    [name] = page.evaluate(KEPT)
    record = json.loads(page.evaluate("name => localStorage.getItem(name)", name))
    turn = record["turns"][0]
    broken = [
        "{half",
        "null",
        "5",
        {**record, "turns": []},
        {**record, "turns": [{}]},
        {**record, "turns": [{**turn, "answer": 5}]},
        {**record, "turns": [{**turn, "message": {"text": "a", "files": [{"name": "b"}]}}]},
        {**record, "name": None},
        {**record, "created": "x"},
    ]
    for number, each in enumerate(broken):
        text = each if isinstance(each, str) else json.dumps(each)
        page.evaluate("([name, text]) => localStorage.setItem(name, text)", [f"h2o-chat-{number}", text])
        page.evaluate("([name, text]) => localStorage.setItem(name, text)", [f"h2o-draft-{number}", text])
    odd = {
        **record,
        "name": HTML,
        "turns": [{**turn, "answer": HTML, "result": {"usage": 5, "timings": [], "h2o": 1}}],
    }
    page.evaluate("text => localStorage.setItem('h2o-chat-odd', text)", json.dumps(odd))
    reload(page)
    assert sorted(tabs(page)) == sorted(["Hello.", HTML])
    page.get_by_role("tab", name=HTML).click()
    assert page.locator(ANSWER).text_content() == HTML
    assert page.evaluate("window.hacked") is None


def test_a_browser_that_keeps_nothing_says_so(browser: Browser, server: Server) -> None:
    refuse = """for (const area of ["localStorage", "sessionStorage"]) {
      Object.defineProperty(window, area, { get() { throw new DOMException("denied", "SecurityError"); } });
    }"""
    with watched_page(browser, "about:blank") as page:
        page.add_init_script(refuse)
        page.goto(server.url)
        page.get_by_text("8,192 tokens of context").wait_for()
        for name in ("Hello.", "Second."):
            page.get_by_role("button", name="New chat").click()
            answer_once(page, whole("Well."))
            ask(page, name)
        page.get_by_text("closed to this page").wait_for()
        page.get_by_role("button", name="Delete chat").click()
        page.get_by_label("Message", exact=True).fill("half a")
        page.get_by_role("button", name="New chat").click()
        page.get_by_role("tab").first.click()
        assert message(page) == "half a"
