"""What goes wrong, and what a person is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from tests.server.page.browser import watched_page
from tests.server.page.person import (
    ANSWER,
    CHAT,
    answer_once,
    ask,
    choose,
    events,
    look_again,
    piece,
    send,
    sent,
)
from tests.server.running import Server, free_port

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


def test_a_prompt_that_is_too_long_can_be_changed(page: Page, long_text: str) -> None:
    send(page, "What is this?", long_text * 3)
    page.get_by_text("No answer: the prompt has").wait_for()
    page.get_by_role("button", name="Edit message").click()
    assert page.locator(".turn").count() == 0
    assert page.get_by_label("Message", exact=True).input_value() == "What is this?"
    page.get_by_role("button", name="Remove report.txt").click()
    assert sent(page, lambda: ask(page, "What is this?"))["messages"][0]["content"] == "What is this?"


def test_an_error_that_is_no_json(page: Page) -> None:
    answer_once(page, b"<h1>Bad gateway</h1>", status=503, content_type="text/html")
    send(page, "Hello.")
    page.get_by_text("No answer: the server answered 503").wait_for()


def test_a_full_queue_says_when_to_try_again(page: Page) -> None:
    said = {"error": {"message": "nine are waiting: try again later"}}
    answer_once(
        page,
        json.dumps(said).encode(),
        status=503,
        content_type="application/json",
        headers={"Retry-After": "7"},
    )
    send(page, "Hello.")
    page.get_by_text("nine are waiting: try again later. It expects to be free in about 7 s.").wait_for()
    page.get_by_role("button", name="Try again").click()
    page.locator(".figures").wait_for()
    assert page.locator(ANSWER).text_content()


def test_an_error_in_mid_stream(page: Page) -> None:
    answer_once(page, events(piece("Half an"), {"error": {"message": "the server is shutting down"}}))
    send(page, "Hello.")
    page.get_by_text("The answer stopped early: the server is shutting down").wait_for()
    assert page.get_by_role("button", name="Try again").is_visible()
    page.get_by_text("What is here of it stays in the conversation.").wait_for()
    assert page.locator(ANSWER).text_content() == "Half an"
    messages = sent(page, lambda: ask(page, "Again?"))["messages"]
    assert [message["content"] for message in messages] == ["Hello.", "Half an", "Again?"]


def test_a_lost_connection(page: Page) -> None:
    answer_once(page, events(piece("Half an")))
    send(page, "Hello.")
    page.get_by_text("the connection was lost before the answer was complete").wait_for()
    page.route(CHAT, lambda route: route.abort(), times=1)
    page.get_by_role("button", name="Try again").click()
    page.get_by_text("No answer: the server cannot be reached").wait_for()
    page.get_by_text("The next request goes without this message.").wait_for()
    assert page.locator(".turn.left-out").count() == 1
    assert [each["content"] for each in sent(page, lambda: ask(page, "Anew."))["messages"]] == ["Anew."]
    assert page.locator(".turn.left-out .question", has_text="Hello.").count() == 1  # and it still says so


@pytest.mark.nightly
def test_an_event_that_is_no_part_of_an_answer(page: Page) -> None:
    answer_once(page, events(piece("Half an"), {}))
    send(page, "Hello.")
    page.get_by_text("The answer stopped early: the server sent what is no part of an answer").wait_for()


@pytest.mark.nightly
def test_settings_that_cannot_be_read_are_none(page: Page) -> None:
    for kept in ("{half", "null", '{"prefill": 5, "temperature": {}}'):
        page.evaluate("kept => localStorage.setItem('h2o-settings', kept)", kept)
        page.reload()
        page.get_by_text("Chunks of 1,024, memory 512").wait_for()
    choose(page, max_tokens=4)
    assert sent(page, lambda: ask(page, "Hello."))["max_tokens"] == 4


def test_it_waits_for_the_model(browser: Browser, server: Server) -> None:
    with watched_page(browser, "about:blank") as page:
        loading = {"error": {"message": "the model is being loaded: try again in a moment"}}
        page.route("**/props", lambda route: route.fulfill(status=503, json=loading))
        page.goto(server.url)
        page.get_by_text("the model is being loaded").wait_for()
        page.unroute("**/props")
        page.get_by_text("8,192 tokens of context").wait_for()


def test_the_header_says_when_the_server_is_gone_and_back(
    browser: Browser, serve: Callable[..., Server]
) -> None:
    server = serve("--port", free_port())
    with watched_page(browser, server.url) as page:
        page.get_by_text("8,192 tokens of context").wait_for()
        server.stop()
        send(page, "Hello.")
        page.locator("#status", has_text="the server cannot be reached").wait_for()
        assert not page.get_by_text("tokens of context").is_visible()
        other = serve("--port", server.port, "--alias", "another")
        page.get_by_text("tokens of context").wait_for()  # nobody has to reload
        assert page.locator("#model").inner_text() == "another"
        other.stop()
        page.locator("#status", has_text="the server cannot be reached").wait_for()  # nor to send


def test_the_header_says_that_the_server_does_not_answer(page: Page) -> None:
    page.route(
        "**/health",
        lambda route: route.fulfill(status=503, json={"error": {"message": "a request is stuck"}}),
    )
    look_again(page)
    page.locator("#status.problem", has_text="a request is stuck").wait_for()
    page.unroute("**/health")
    look_again(page)
    page.get_by_text("tokens of context").wait_for()


def test_events_however_they_are_cut(page: Page) -> None:
    stream = (
        ': keep-alive\r\n\r\ndata: {"a": "ü"}\r\n\r\ndata:b\ndata: c\n\n: x\n\nid: 1\rdata: €\r\rdata: cut'
    )
    got = page.evaluate(
        """async (bytes) => {
          const { events } = await import("/static/sse.js");
          const all = new Set();
          for (let cut = 0; cut <= bytes.length; cut++) {
            for (const parts of [[bytes.slice(0, cut), bytes.slice(cut)], bytes.map((byte) => [byte])]) {
              const stream = new ReadableStream({ start(controller) {
                for (const part of parts) controller.enqueue(new Uint8Array(part));
                controller.close();
              } });
              const got = [];
              for await (const data of events(stream)) got.push(data);
              all.add(JSON.stringify(got));
            }
          }
          return [...all];
        }""",
        list(stream.encode()),
    )
    assert [json.loads(each) for each in got] == [['{"a": "ü"}', "b\nc", "€"]]


def test_api_key(browser: Browser, serve: Callable[..., Server]) -> None:
    server = serve(key="open sesame")
    with watched_page(browser, server.url) as page:
        field = page.get_by_label("API key", exact=True)
        field.fill("“wrong”")  # which no header can carry
        field.press("Enter")
        assert page.locator("#key-value:invalid").is_visible()  # the browser says why
        field.fill("wrong")
        field.press("Enter")
        page.get_by_text("The server does not know this key.").wait_for()
        field.fill("open sesame")
        page.get_by_role("button", name="Use key").click()
        page.get_by_text("tokens of context").wait_for()
        choose(page, max_tokens=4)
        assert ask(page, "Hello.")
        page.reload()
        page.get_by_text("tokens of context").wait_for()  # it is kept
        assert not field.is_visible()
        assert "sesame" not in page.evaluate(
            "JSON.stringify({ ...localStorage }) + document.cookie + location"
        )
