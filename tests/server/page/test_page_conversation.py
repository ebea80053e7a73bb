"""What is asked and what is answered."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from tests.server.page.person import (
    ANSWER,
    CHAT,
    RECORD,
    SLOW_FILES,
    ask,
    attach,
    choose,
    choose_file,
    figures,
    send,
    sent,
    shown,
    wait_until_answered,
    words,
)
from tests.server.running import Server, wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

PACE = 0.005


def test_what_is_shown_is_what_the_api_answers(page: Page, server: Server) -> None:
    answer = ask(page, "Hello.")
    response = server.chat("Hello.", temperature=0, max_tokens=24)
    assert answer == words(response.json()["choices"][0]["message"]["content"])


def test_progress_and_figures_of_a_long_prompt(page: Page, long_text: str) -> None:
    bodies = []

    def listen(route: Route) -> None:
        response = route.fetch()
        bodies.append(response.text())
        route.fulfill(response=response)

    page.route(CHAT, listen, times=1)
    page.evaluate(RECORD)
    ask(page, "First question", long_text)
    total = int(page.locator(".bar").get_attribute("aria-valuemax") or 0)
    values = [int(value) for value in page.evaluate("window.seen")]
    assert total > 4096
    assert any(0 < value < total for value in values), values
    assert values == sorted(values)
    assert not page.locator(".reading").is_visible()
    last, usage = [json.loads(line[6:]) for line in bodies[0].split("\n\n")[-4:-2]]
    row = figures(page)
    assert row["Prompt"].startswith(f"{usage['usage']['prompt_tokens']:,} tokens")
    assert row["Read at"] == f"{last['timings']['prompt_per_second']:,.0f} tokens/s"
    assert row["Written at"] == f"{last['timings']['predicted_per_second']:,.0f} tokens/s"
    assert row["Answer"] == "24 tokens at the limit"
    assert row["Chunks"] == f"{last['h2o']['chunks']} memory 1,024"
    assert row["First token"].endswith("s")
    ask(page, "Second question")
    assert "cached" in figures(page)["Prompt"]


def test_a_turn_carries_the_conversation(page: Page) -> None:
    """And Enter with shift is a new line."""
    first = ask(page, "Hello.")
    field = page.get_by_label("Message", exact=True)
    field.press_sequentially("And")
    field.press("Shift+Enter")
    field.press_sequentially("now?")
    messages = sent(page, lambda: field.press("Enter"))["messages"]
    assert [(message["role"], message["content"]) for message in messages[::2]] == [
        ("user", "Hello."),
        ("user", "And\nnow?"),
    ]
    assert (messages[1]["role"], words(messages[1]["content"])) == ("assistant", first)
    wait_until_answered(page)
    page.get_by_role("button", name="New chat").click()
    assert page.locator(".turn").count() == 0
    assert len(sent(page, lambda: send(page, "Anew."))["messages"]) == 1
    wait_until_answered(page)


def test_only_changed_settings_are_sent(page: Page) -> None:
    body = sent(page, lambda: ask(page, "Hello."))
    assert "prefill" not in body
    assert (body["temperature"], body["max_tokens"]) == (0, 24)
    choose(page, policy="h2o score=window")
    choose(page, chunk_size=512, local=128, heavy=256)
    body = sent(page, lambda: ask(page, "Hello."))
    assert body["prefill"] == "h2o score=window chunk_size=512 local=128 heavy=256"
    page.get_by_text("Chunks of 512, memory 384").wait_for()
    choose(page, policy="full")  # which has none of these
    assert not page.locator("[name='prefill.chunk_size']").is_visible()
    body = sent(page, lambda: ask(page, "Hello."))
    assert body["prefill"] == "full"
    page.reload()
    page.get_by_text("Full attention", exact=True).wait_for()  # they are kept
    page.get_by_role("button", name="Settings").click()
    page.get_by_role("button", name="Server's defaults").click()
    page.get_by_role("button", name="Done").click()
    body = sent(page, lambda: send(page, "Hello."))
    assert not {"prefill", "temperature", "max_tokens"} & set(body)
    page.keyboard.press("Escape")
    wait_until_answered(page)


def test_stop(page: Page, server: Server) -> None:
    choose(page, max_tokens=8000)
    send(page, "Hello.")
    wait_for(lambda: len(page.locator(ANSWER).text_content() or "") > 20)
    page.keyboard.press("Escape")
    wait_until_answered(page)
    said = shown(page)
    server.wait_until_idle()
    assert shown(page) == said
    assert figures(page)["Answer"] == "stopped"
    choose(page, max_tokens=4)
    assert sent(page, lambda: ask(page, "Go on."))["messages"][1]["content"].split() == said.split()


def test_stop_before_the_answer_and_try_again(page: Page) -> None:
    page.route(CHAT, lambda route: None, times=1)  # it never gets there
    send(page, "Hello.")
    page.get_by_text("Waiting for the server").wait_for()
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("Stopped before the answer began").wait_for()
    page.get_by_role("button", name="Try again").click()
    page.locator(".figures").wait_for()
    assert page.locator(ANSWER).text_content()
    assert not page.get_by_text("Stopped before the answer began").is_visible()


def test_the_end_stays_in_view_unless_one_reads_above(page: Page) -> None:
    choose(page, max_tokens=600)
    send(page, "Hello.")
    log = page.locator(".log")
    wait_for(lambda: len(page.locator(ANSWER).text_content() or "") > 400)
    hidden = "log => log.scrollHeight - log.scrollTop - log.clientHeight"
    assert log.evaluate(hidden) < 40
    log.evaluate("log => (log.scrollTop = 0)")
    wait_until_answered(page)
    assert log.evaluate("log => log.scrollTop") == 0
    ask(page, "And?")
    assert log.evaluate(hidden) < 40  # with the figures


def test_texts_come_before_the_question(page: Page) -> None:
    attach(page, "one.txt", "Grüße 1".encode())
    attach(page, "two.txt", b"to be removed")
    page.get_by_role("button", name="Remove two.txt").click()
    page.evaluate("""() => {
      const data = new DataTransfer();
      data.items.add(new File(["dropped"], "three.txt"));
      document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
    }""")
    page.get_by_text("three.txt").wait_for()
    page.evaluate("""() => {
      const data = new DataTransfer();
      data.setData("text/plain", "p".repeat(5000));
      const event = new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true });
      document.getElementById("prompt").dispatchEvent(event);
    }""")
    page.get_by_text("Pasted text").wait_for()
    body = sent(page, lambda: send(page, "And?"))
    assert body["messages"][0]["content"] == f"Grüße 1\n\ndropped\n\n{'p' * 5000}\n\nAnd?"
    wait_until_answered(page)
    assert page.locator(".composer .files li").count() == 0
    page.locator(".question summary", has_text="one.txt").click()
    page.locator(".question pre", has_text="Grüße 1").wait_for()


def test_a_message_takes_the_files_that_are_still_being_read(page: Page) -> None:
    page.evaluate(SLOW_FILES)
    choose_file(page, "one.txt", b"one")
    choose_file(page, "two.txt", b"two")
    body = sent(page, lambda: (send(page, "And?"), page.evaluate("window.go()")))
    assert body["messages"][0]["content"] == "one\n\ntwo\n\nAnd?"
    wait_until_answered(page)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\xff\xfe\x00binary", "is not a text file in UTF-8."),
        pytest.param(b"null\x00byte", "is not a text file in UTF-8.", marks=pytest.mark.nightly),
        (b"\xef\xbb\xbf \n", "is empty: it has no text to send."),
    ],
)
def test_a_file_without_text_is_refused(page: Page, content: bytes, problem: str) -> None:
    files = {"bad.txt": content, "good.txt": b"text", "worse.txt": b""}
    page.locator("#file").set_input_files(
        [{"name": name, "mimeType": "text/plain", "buffer": each} for name, each in files.items()]
    )
    page.get_by_role("button", name="Remove good.txt").wait_for()
    page.get_by_text(f"bad.txt {problem} worse.txt is empty: it has no text to send.").wait_for()
    assert page.locator(".composer .files li").count() == 1


# What the server does


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
