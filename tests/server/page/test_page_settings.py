"""The settings' form, which is made of what the policies say of their options."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.server.page.browser import watched_page
from tests.server.page.person import CHAT, ask, choose, figures, send, sent, wait_until_answered
from tests.server.running import Server, wait_for
from tests.server.typed_policy import install

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route


def labels(page: Page) -> list[str]:
    """What the part on reading the prompt shows."""
    shown = page.locator("#prefill-fields label:visible")
    return [str(label.evaluate("label => label.firstChild.textContent.trim()")) for label in shown.all()]


def test_only_the_chosen_policys_fields_are_shown(page: Page) -> None:
    page.get_by_text("Chunks of 1,024, memory 512").click()
    whole = [
        *("Attention", "Chunk size", "Local window", "Heavy hitters", "Heads", "Dense tail", "Tile"),
        *("Queries", "Late queries", "Candidates", "Grow", "Dense start", "Checks", "Missed"),
    ]
    assert labels(page) == whole
    page.get_by_label("Attention").select_option("full")
    assert labels(page) == ["Attention"]
    page.get_by_label("Attention").select_option("h2o score=window")
    assert labels(page) == [*whole[:6], "Window"]
    page.get_by_label("Attention").select_option("")
    assert labels(page) == whole


def test_a_preset_can_be_chosen_and_changed(page: Page) -> None:
    choose(page, policy="guarded")
    assert sent(page, lambda: ask(page, "Hello."))["prefill"] == "guarded"
    choose(page, heavy=100)
    page.get_by_text("Chunks of 1,024, memory 164").wait_for()
    page.reload()
    page.get_by_text("Chunks of 1,024, memory 164").wait_for()  # it is kept
    assert sent(page, lambda: ask(page, "Hello."))["prefill"] == "guarded heavy=100"


def reload_without_props(page: Page) -> Route:
    """Reload → the request for what the server does, which waits for `continue_`."""
    held: list[Route] = []
    page.route("**/props", lambda route: held.append(route), times=1)
    page.reload()
    wait_for(lambda: page.evaluate("true") and held)  # handlers run while the page is asked something
    return held[0]


def test_a_message_waits_until_the_server_has_said_what_it_does(page: Page) -> None:
    choose(page, policy="guarded")
    held = reload_without_props(page)
    assert page.locator("[name=max_tokens]").input_value() == "24"
    with page.expect_request(CHAT) as request:
        send(page, "Hello.")
        page.locator(".answer[aria-busy=true]").wait_for()
        held.continue_()
    body = request.value.post_data_json
    assert (body["temperature"], body["max_tokens"], body["prefill"]) == (0, 24, "guarded")
    wait_until_answered(page)


def test_settings_that_contradict(page: Page) -> None:
    choose(page, heavy=1024)
    button = page.locator("#summary")
    page.locator("#summary[title*='must be below chunk_size']").wait_for()
    assert button.inner_text() == "Settings contradict"
    choose(page, heavy=128)
    page.get_by_text("Chunks of 1,024, memory 192").wait_for()
    assert button.get_attribute("title") == ""
    choose(page, heavy=128, grow="never")
    page.get_by_text("Chunks of 1,024, memory 192").wait_for()
    assert sent(page, lambda: ask(page, "Hello."))["prefill"] == "heavy=128 grow=never"


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_another_packages_policy(browser: Browser, tiny_bundle: Path, tmp_path: Path) -> None:
    with (
        Server(tiny_bundle, environment=install(tmp_path)) as server,
        watched_page(browser, server.url) as page,
    ):
        choose(page, temperature=0, max_tokens=4, policy="typed")
        choose(page, stride=3, careful="true", share=0.25)
        page.get_by_text("Every 3th token").wait_for()
        page.get_by_role("button", name="Settings").click()
        assert labels(page) == ["Attention", "Stride", "Share", "Careful"]
        page.get_by_role("button", name="Done").click()
        body = sent(page, lambda: ask(page, "Hello."))
        assert body["prefill"] == "typed stride=3 share=0.25 careful=true"
        assert figures(page)["Chunks"] == "1"
        page.get_by_role("button", name="Show memory").click()
        page.get_by_text("has no memory to show").wait_for()
