"""The view of what sparse prefill remembers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.conftest import EXAMPLE
from tests.server.page.person import ask, choose, open_memory, shades
from tests.server.running import Server, wait_for

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from playwright.sync_api import Page

# Small chunks: what a text of 1,400 tokens leaves in memory is drawn soon.
CHUNKS = {"chunk_size": 256, "local": 16, "heavy": 112}
FLAGS = ("--prefill", " ".join(("h2o", *(f"{name}={value}" for name, value in CHUNKS.items()))))


@pytest.fixture
def long_text(request: pytest.FixtureRequest) -> str:
    """More than five of these chunks."""
    text = (EXAMPLE / "heldout.txt").read_text(encoding="utf-8")
    return f"{request.node.name}\n{text[:5000]}"


def test_the_shading_is_what_the_memory_holds(page: Page, server: Server, long_text: str) -> None:
    choose(page, policy="h2o score=colsum", **CHUNKS)
    ask(page, "What is this?", long_text)
    name = open_memory(page)
    memory = server.get(f"/memory/{name}").json()
    assert memory["boundaries"] >= 4
    wait_for(lambda: page.locator("#tokens p > span").count() == len(memory["tokens"]))
    assert page.locator("#tokens section").count() == memory["boundaries"] + 1
    drawn = "[...document.querySelectorAll('#tokens p > span')].map((token) => token.textContent)"
    assert page.evaluate(drawn) == memory["tokens"]
    seen = set()
    for boundary in range(memory["boundaries"]):
        page.get_by_label("After").fill(str(boundary))
        for layer in range(memory["layers"]):
            page.get_by_label("Layer").fill(str(layer))
            place = f"/memory/{name}/counts?boundary={boundary}&layer={layer}"
            counts = server.get(place).json()["counts"]
            shaded = [f"kept k{8 * count // memory['heads']}" if count else "" for count in counts]
            wait_for(lambda shaded=shaded: page.evaluate(drawn.replace("textContent", "className")) == shaded)
            seen.add(tuple(shaded))
    assert len(seen) > memory["boundaries"]  # both sliders matter
    assert page.locator("#tokens .ahead").count() == 1  # what came after the last boundary


@pytest.mark.nightly
def test_tiles_of_a_chunk_have_memories_of_their_own(page: Page, server: Server, long_text: str) -> None:
    choose(page, chunk_size=500, dense_tail=0)  # four tiles of 125
    ask(page, "What is this?", long_text)
    memory = server.get(f"/memory/{open_memory(page)}").json()
    tokens, chunks = len(memory["tokens"]), sorted(set(memory["ends"]))
    assert chunks == list(range(500, tokens, 500))
    assert memory["boundaries"] == -(-(tokens - 500) // 125)
    wait_for(lambda: page.locator("#tokens p > span").count() == tokens)
    names = page.locator("#tokens section h3").all_text_contents()
    assert [name.split(" tokens ")[0] for name in names] == [f"Chunk {i + 1}" for i in range(len(chunks) + 1)]
    told = page.locator("#boundary-value")
    for boundary, label in ((0, "500 to 624"), (3, "875 to 999"), (4, "1,000 to 1,124")):
        page.get_by_label("After").fill(str(boundary))
        wait_for(lambda b=boundary, t=label: told.inner_text() == f"chunk {b // 4 + 1}, for tokens {t}")
        place = f"/memory/{memory['id']}/counts?boundary={boundary}&layer=0"
        kept = sum(count > 0 for count in server.get(place).json()["counts"])
        page.get_by_label("Layer").fill("0")
        wait_for(lambda kept=kept: sum(shades(page).values()) == kept)


def test_details_of_a_token(page: Page, server: Server, long_text: str) -> None:
    ask(page, "What is this?", long_text)
    name = open_memory(page)
    page.locator("#tokens section").nth(4).wait_for(state="attached")
    token = page.locator("#tokens p > span").nth(7)
    token.click()
    memory = server.get(f"/memory/{name}").json()
    last = memory["boundaries"] - 1
    held = server.get(f"/memory/{name}/counts?boundary={last}&layer=0").json()["counts"]

    def told(index: int) -> str:
        return f"{json.dumps(memory['tokens'][index])} token {index} · remembered by {held[index]} of 4 heads"

    detail = page.locator("#detail")
    wait_for(lambda: detail.inner_text() == told(7))
    page.locator("#tokens").press("ArrowRight")
    assert detail.inner_text() == told(8)
    page.locator("#memory-map").click(position={"x": 2, "y": 8})
    assert "token 7" not in detail.inner_text()
    page.keyboard.press("Escape")
    assert not page.locator("#memory").is_visible()


@pytest.mark.parametrize(
    ("policy", "long"), [("", False), pytest.param("full", True, marks=pytest.mark.nightly)]
)
def test_nothing_to_remember(page: Page, long_text: str, policy: str, long: bool) -> None:
    choose(page, policy=policy)
    ask(page, "What is this?", long_text if long else None)
    page.get_by_role("button", name="Show memory").click()
    page.get_by_text("Every token of this prompt saw all tokens before it").wait_for()
    assert not page.locator("#memory-view").is_visible()


def test_memory_of_an_older_answer(page: Page, server: Server, long_text: str) -> None:
    ask(page, "What is this?", long_text)
    server.chat("Somebody else's question.")
    page.get_by_role("button", name="Show memory").click()
    page.get_by_text("keeps the memory of its last answer only").wait_for()
    ask(page, "And this?")  # an open view goes with the conversation
    page.locator("#tokens .kept").first.wait_for()
    assert page.get_by_role("button", name="Show memory").count() == 1
