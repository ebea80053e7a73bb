"""What a person does with a turn that is there: copy it, ask again, edit the message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.server.page.person import (
    CHAT,
    answer_once,
    ask,
    attach,
    events,
    figures,
    piece,
    reload,
    send,
    sent,
    wait_until_answered,
    whole,
)
from tests.server.running import wait_for

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page


def answered(page: Page, question: str, answer: str) -> None:
    answer_once(page, whole(answer))
    ask(page, question)


def button(page: Page, name: str, turn: int) -> Locator:
    return page.locator(".turn").nth(turn).get_by_role("button", name=name, exact=True)


def questions(page: Page) -> list[str]:
    return page.locator(".question .text").all_inner_texts()


def written(page: Page) -> str:
    return page.get_by_label("Message", exact=True).input_value()


def contents(body: Any) -> list[str]:
    return [message["content"] for message in body["messages"]]


@pytest.mark.parametrize("https", [pytest.param(True, marks=pytest.mark.nightly), False])
def test_an_answer_and_a_question_are_copied(page: Page, https: bool) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    answered(page, "What is <b>?", "**Bold** and\n\n- one")
    if not https:
        page.evaluate("void (navigator.clipboard.writeText = () => Promise.reject(new Error('no https')))")
    for name, text in (("Copy answer", "**Bold** and\n\n- one"), ("Copy message", "What is <b>?")):
        copy = button(page, name, 0)
        copy.focus()
        page.keyboard.press("Enter")
        wait_for(lambda copy=copy: page.locator("button:focus").inner_text().startswith("Copied"))
        assert page.evaluate("navigator.clipboard.readText()") == text


def test_asking_again_drops_the_answers_that_came_after(page: Page) -> None:
    for number in ("One", "Two", "Three"):
        answered(page, f"{number}?", f"{number}.")
    page.once("dialog", lambda dialog: dialog.dismiss())
    button(page, "Try again", 1).click()
    assert questions(page) == ["One?", "Two?", "Three?"]
    said = []
    page.once("dialog", lambda dialog: (said.append(dialog.message), dialog.accept()))
    answer_once(page, whole("Other."))
    body = sent(page, lambda: button(page, "Try again", 1).click())
    assert contents(body) == ["One?", "One.", "Two?"]
    wait_until_answered(page)
    assert questions(page) == ["One?", "Two?"]
    assert said == ["Try again? Later answers are deleted, with their messages."]


def test_an_edited_message_goes_on_from_there(page: Page) -> None:
    answered(page, "One?", "One.")
    attach(page, "report.txt", b"long")
    answered(page, "Two?", "Two.")
    answered(page, "Three?", "Three.")
    page.get_by_label("Message", exact=True).fill("half a")
    page.once("dialog", lambda dialog: dialog.accept())
    button(page, "Edit message", 1).press("Enter")
    assert questions(page) == ["One?"]
    assert written(page) == "Two?\n\nhalf a"  # nothing that was written is lost
    assert page.get_by_role("button", name="Remove report.txt").is_visible()
    assert page.locator("#prompt:focus").count() == 1
    reload(page)
    assert (questions(page), written(page)) == (["One?"], "Two?\n\nhalf a")
    answer_once(page, whole("Well."))
    assert contents(sent(page, lambda: send(page, "Two!"))) == ["One?", "One.", "long\n\nTwo!"]
    wait_until_answered(page)


@pytest.mark.nightly
def test_a_broken_answer_can_be_asked_for_again_after_a_later_message_failed(page: Page) -> None:
    answer_once(page, events(piece("Half an")))
    send(page, "Hello.")
    wait_until_answered(page)
    page.route(CHAT, lambda route: route.abort(), times=1)
    send(page, "Lost.")
    page.get_by_text("No answer").wait_for()
    reload(page)
    page.get_by_text("The answer stopped early: the connection was lost").wait_for()
    answer_once(page, whole("Well."))
    assert contents(sent(page, lambda: button(page, "Try again", 0).click())) == ["Hello."]
    page.get_by_text("Well.").wait_for()
    assert questions(page) == ["Hello.", "Lost."]  # what has no answer is not lost
    answer_once(page, whole("Found."))
    body = sent(page, lambda: button(page, "Try again", 1).click())
    assert contents(body) == ["Hello.", "Well.", "Lost."]
    wait_until_answered(page)


def test_while_an_answer_comes_others_can_only_be_copied(page: Page) -> None:
    answered(page, "One?", "One.")
    page.route(CHAT, lambda route: None, times=1)
    send(page, "Two?")
    page.locator(".turn").nth(1).get_by_text("Waiting for the server").wait_for()
    for turn in (0, 1):
        assert not button(page, "Try again", turn).is_visible()
        assert not button(page, "Edit message", turn).is_visible()
    assert button(page, "Copy answer", 0).is_visible()
    page.keyboard.press("Escape")
    button(page, "Edit message", 0).wait_for()


TIMED = {"prompt_ms": 270.0, "prompt_per_second": 3.7, "predicted_ms": 270.0, "predicted_per_second": 3.7}


@pytest.mark.parametrize(("tokens", "told"), [(15, False), (16, True)])
def test_the_rate_of_a_few_tokens_is_not_told(page: Page, tokens: int, told: bool) -> None:
    timings = {**TIMED, "prompt_n": tokens, "predicted_n": tokens}
    answer_once(
        page, events({**piece("Well.", finish_reason="stop"), "timings": timings}) + b"data: [DONE]\n\n"
    )
    ask(page, "Hello.")
    row = figures(page)
    assert [row.get(name) for name in ("Read at", "Written at")] == 2 * ["3.7 tokens/s" if told else None]
    text = page.evaluate(
        """async (read) => {
          const { Reading } = await import("/static/reading.js");
          const { parts } = (await import("/static/dom.js")).fromTemplate("turn");
          new Reading(parts).progress({ total: 4650, cache: 4600, processed: 4600 + read, time_ms: 1000 });
          return parts["reading-text"].textContent;
        }""",
        tokens,
    )
    assert ("tokens/s" in text, "left" in text) == (told, told)
