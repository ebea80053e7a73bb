"""The settings' form, which is made of what the policies say of their options."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.runtime.server.page.browser import watched_page
from tests.runtime.server.page.person import ask, choose, figures, sent
from tests.runtime.server.running import Server
from tests.runtime.server.typed_policy import install

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


def labels(page: Page) -> list[str]:
    """What the part on reading the prompt shows."""
    shown = page.locator("#prefill-fields label:visible")
    return [str(label.evaluate("label => label.firstChild.textContent.trim()")) for label in shown.all()]


def test_only_the_chosen_policys_fields_are_shown(page: Page) -> None:
    page.get_by_text("Chunks of 1,024, memory 512").click()
    whole = [
        "Quality",
        "Attention",
        "Chunk size",
        "Local window",
        "Heavy hitters",
        "Score",
        "Score heads",
        "Sink tokens",
        "Dense tail",
        "Score tile",
        "Score queries",
        "Score candidates",
        "Score grow",
        "Score checks",
        "Score missed",
        "Score window",
    ]
    assert labels(page) == whole
    page.get_by_label("Attention").select_option("full")
    assert labels(page) == ["Quality", "Attention"]
    page.get_by_label("Attention").select_option(label="sparse")
    assert labels(page) == whole


def test_a_quality_in_the_place_of_what_it_stands_for(page: Page) -> None:
    choose(page, heavy=300, sink=4)
    choose(page, quality="fast")
    page.get_by_text("Chunks of 512, memory 256").wait_for()
    page.locator("#summary").click()
    said = page.locator("#quality-note").inner_text()
    assert said.startswith("fast sets: Attention sparse, ")
    assert "Chunk size 512, Local window 64, Heavy hitters 192" in said
    assert labels(page) == [
        "Quality",
        "Score heads",
        "Sink tokens",
        "Dense tail",
        "Score candidates",
        "Score checks",
        "Score missed",
        "Score window",
    ]
    page.get_by_role("button", name="Done").click()
    assert sent(page, lambda: ask(page, "Hello."))["prefill"] == {"quality": "fast", "sink": 4}
    choose(page, quality="exact")
    page.get_by_text("Full attention", exact=True).wait_for()
    page.reload()
    page.get_by_text("Full attention", exact=True).wait_for()  # it is kept
    page.locator("#summary").click()
    assert labels(page) == ["Quality"]
    page.get_by_label("Quality").select_option("set below")
    assert page.get_by_label("Heavy hitters").input_value() == "300"
    page.get_by_role("button", name="Done").click()
    assert sent(page, lambda: ask(page, "Hello."))["prefill"] == {"heavy": 300, "sink": 4}


@pytest.mark.timeout(180)
def test_a_quality_that_the_server_cannot_have_is_not_offered(browser: Browser, tiny_bundle: Path) -> None:
    """Batches of 64 have no room for its chunks, but for full attention's."""
    server = Server(tiny_bundle, "--batch-size", 64, "--prefill", "full")
    try:
        server.wait_until_ready()
        assert server.get("/props").json()["prefill_quality"]["choices"] == {"exact": {"policy": "full"}}
        with watched_page(browser, server.url) as page:
            page.get_by_text("Full attention", exact=True).click()
            assert page.get_by_label("Quality").locator("option").all_inner_texts() == ["set below", "exact"]
    finally:
        server.stop()


def test_settings_that_contradict(page: Page) -> None:
    choose(page, heavy=1024)
    button = page.locator("#summary")
    page.locator("#summary[title*='must be below `chunk_size`']").wait_for()
    assert button.inner_text() == "Settings contradict"
    choose(page, heavy=128)
    page.get_by_text("Chunks of 1,024, memory 192").wait_for()
    assert button.get_attribute("title") == ""
    choose(page, heavy="auto")
    page.get_by_text("Chunks of 1,024, memory 512 to 960").wait_for()
    assert sent(page, lambda: ask(page, "Hello."))["prefill"] == {"heavy": "auto"}


@pytest.mark.timeout(180)
def test_another_packages_policy(browser: Browser, tiny_bundle: Path, tmp_path: Path) -> None:
    server = Server(tiny_bundle, environment=install(tmp_path))
    try:
        server.wait_until_ready()
        with watched_page(browser, server.url) as page:
            choose(page, temperature=0, max_tokens=4, policy="typed", stride=3, careful="true", share=0.25)
            page.get_by_text("Every 3th token").wait_for()
            page.get_by_role("button", name="Settings").click()
            assert labels(page) == ["Quality", "Attention", "Stride", "Share", "Careful"]
            page.get_by_role("button", name="Done").click()
            body = sent(page, lambda: ask(page, "Hello."))
            assert body["prefill"] == {"policy": "typed", "stride": 3, "share": 0.25, "careful": True}
            assert figures(page)["Chunks"] == "1"
            page.get_by_role("button", name="Show memory").click()
            page.get_by_text("has no memory to show").wait_for()
    finally:
        server.stop()
