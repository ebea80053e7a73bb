"""The page at /, as a person with a browser meets it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.conftest import EXAMPLE
from tests.runtime.server.browser import chromium, watched_page
from tests.runtime.server.running import Server, wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

ANSWER = ".turn:last-of-type [data-part=answer]"
CHAT = "**/v1/chat/completions"
HTML = '<img src=x onerror="window.hacked = true"><b>bold</b>'

# What the progress bar says, from now on.
RECORD = """() => {
  const seen = (window.seen = []);
  const note = () => {
    const value = document.querySelector(".bar")?.getAttribute("aria-valuenow");
    if (value && seen.at(-1) !== value) seen.push(value);
  };
  new MutationObserver(note).observe(document.body, { subtree: true, attributes: true });
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def server(browser: Browser, tiny_bundle: Path) -> Iterator[Server]:
    """Named after the browser: without one there is nothing to serve."""
    started = Server(tiny_bundle)
    try:
        started.wait_until_ready()
        yield started
    finally:
        started.stop()


@pytest.fixture
def page(browser: Browser, server: Server) -> Iterator[Page]:
    """The page, with short and repeatable answers."""
    with watched_page(browser, server.url) as opened:
        choose(opened, temperature=0, max_tokens=24)
        yield opened
    server.wait_until_idle()


@pytest.fixture
def long_text(request: pytest.FixtureRequest) -> str:
    """More than four chunks of 1,024 tokens, of which the cache holds nothing."""
    text = (EXAMPLE / "heldout.txt").read_text(encoding="utf-8")
    return f"{request.node.name}\n{text[:16_000]}"


def choose(page: Page, **settings: Any) -> None:
    """Change settings as a person does; names are those of requests, `prefill.` for its members."""
    page.get_by_role("button", name="Settings").click()
    for name, value in settings.items():
        field = page.locator(f"[name='{name}'], [name='prefill.{name}']")
        if field.evaluate("field => field.tagName") == "SELECT":
            field.select_option(str(value))
        else:
            field.fill(str(value))
    page.get_by_role("button", name="Done").click()


def send(page: Page, text: str, file: str | None = None) -> None:
    if file is not None:
        attach(page, "report.txt", file.encode())
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def attach(page: Page, name: str, content: bytes) -> None:
    page.locator("#file").set_input_files({"name": name, "mimeType": "text/plain", "buffer": content})


def wait_until_answered(page: Page) -> None:
    page.locator(".turn:last-of-type .answer[aria-busy=false]").wait_for()


def ask(page: Page, text: str, file: str | None = None) -> str:
    """Send a message → the whole answer."""
    send(page, text, file)
    wait_until_answered(page)
    return page.locator(ANSWER).text_content() or ""


def sent(page: Page, act: Callable[[], object]) -> Any:
    """The body of the chat request that `act` leads to."""
    with page.expect_request(CHAT) as request:
        act()
    return request.value.post_data_json


def figures(page: Page) -> dict[str, str]:
    rows = page.locator(".turn:last-of-type .figures dl > div")
    return dict(row.inner_text().split("\n", 1) for row in rows.all())


def open_memory(page: Page) -> str:
    """Open the memory view → the answer's id."""
    with page.expect_response("**/memory/*") as response:
        page.get_by_role("button", name="Show memory").last.click()
    return response.value.url.rsplit("/", 1)[-1]


def shades(page: Page) -> Counter[str]:
    """How many tokens have which shade."""
    found = page.evaluate("[...document.querySelectorAll('#tokens .kept')].map((token) => token.className)")
    return Counter(found)


def events(*values: Any) -> bytes:
    """A stream as the server writes it, ended without [DONE]."""
    return b"".join(b"data: " + json.dumps(value).encode() + b"\n\n" for value in values)


def piece(text: str, **more: Any) -> Any:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None} | more
    return {"id": "chatcmpl-1", "choices": [choice]}


def answer_once(page: Page, body: bytes, **response: Any) -> None:
    """Put `body` in the place of the next answer."""

    def handle(route: Route) -> None:
        route.fulfill(**{"status": 200, "content_type": "text/event-stream", "body": body} | response)

    page.route(CHAT, handle, times=1)


# The conversation


def test_an_answer_grows_while_it_comes(page: Page) -> None:
    choose(page, max_tokens=8000)
    send(page, "Hello.")
    said = page.locator(ANSWER)
    seen = [""]
    for _ in range(5):
        wait_for(lambda: len(said.text_content() or "") > len(seen[-1]))
        seen.append(said.text_content() or "")
    assert page.locator(".answer[aria-busy=true]").count() == 1  # all of that before its end
    assert all(longer.startswith(shorter) for shorter, longer in pairwise(seen))
    page.keyboard.press("Escape")
    wait_until_answered(page)


def test_what_is_shown_is_what_the_api_answers(page: Page, server: Server) -> None:
    shown = ask(page, "Hello.")
    response = server.chat("Hello.", temperature=0, max_tokens=24)
    assert shown == response.json()["choices"][0]["message"]["content"]


def test_progress_of_a_long_prompt(page: Page, long_text: str) -> None:
    page.evaluate(RECORD)
    send(page, "What is this?", long_text)
    page.get_by_role("progressbar", name="Reading the prompt").wait_for()
    wait_until_answered(page)
    total = int(page.locator(".bar").get_attribute("aria-valuemax") or 0)
    values = [int(value) for value in page.evaluate("window.seen")]
    assert total > 4096
    assert any(0 < value < total for value in values), values
    assert values == sorted(values)
    assert not page.locator(".reading").is_visible()


def test_figures_of_a_turn(page: Page, long_text: str) -> None:
    bodies = []

    def listen(route: Route) -> None:
        response = route.fetch()
        bodies.append(response.text())
        route.fulfill(response=response)

    page.route(CHAT, listen, times=1)
    ask(page, "First question", long_text)
    last, usage = [json.loads(line[6:]) for line in bodies[0].split("\n\n")[-4:-2]]
    shown = figures(page)
    assert shown["Prompt"].startswith(f"{usage['usage']['prompt_tokens']:,} tokens")
    assert shown["Read at"] == f"{last['timings']['prompt_per_second']:,.0f} tokens/s"
    assert shown["Written at"] == f"{last['timings']['predicted_per_second']:,.0f} tokens/s"
    assert shown["Answer"] == "24 tokens at the limit"
    assert shown["Chunks"] == f"{last['h2o']['chunks']} memory 512"
    assert shown["First token"].endswith("s")
    ask(page, "Second question")
    assert "cached" in figures(page)["Prompt"]


def test_a_turn_carries_the_conversation(page: Page) -> None:
    first = ask(page, "Hello.")
    messages = sent(page, lambda: send(page, "And now?"))["messages"]
    assert messages == [
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": first},
        {"role": "user", "content": "And now?"},
    ]
    wait_until_answered(page)
    page.get_by_role("button", name="New chat").click()
    assert page.locator(".turn").count() == 0
    assert len(sent(page, lambda: send(page, "Anew."))["messages"]) == 1
    wait_until_answered(page)


def test_only_changed_settings_are_sent(page: Page) -> None:
    body = sent(page, lambda: ask(page, "Hello."))
    assert "prefill" not in body
    assert (body["temperature"], body["max_tokens"]) == (0, 24)
    choose(page, policy="full", chunk_size=512, heavy=256, score="window", sink=4)
    body = sent(page, lambda: ask(page, "Hello."))
    assert body["prefill"] == {"policy": "full", "chunk_size": 512, "score": "window", "sink": 4}
    page.reload()
    page.get_by_text("Full attention").wait_for()  # they are kept
    page.get_by_role("button", name="Settings").click()
    page.get_by_role("button", name="Server's defaults").click()
    page.get_by_role("button", name="Done").click()
    body = sent(page, lambda: send(page, "Hello."))
    assert not {"prefill", "temperature", "max_tokens"} & set(body)
    page.keyboard.press("Escape")
    wait_until_answered(page)


@pytest.mark.parametrize("way", ["button", "key"])
def test_stop(page: Page, server: Server, way: str) -> None:
    choose(page, max_tokens=8000)
    send(page, "Hello.")
    wait_for(lambda: len(page.locator(ANSWER).text_content() or "") > 20)
    if way == "button":
        page.get_by_role("button", name="Stop").click()
    else:
        page.keyboard.press("Escape")
    wait_until_answered(page)
    said = page.locator(ANSWER).text_content()
    server.wait_until_idle()
    assert page.locator(ANSWER).text_content() == said
    assert figures(page)["Answer"] == "stopped"
    choose(page, max_tokens=4)
    assert sent(page, lambda: ask(page, "Go on."))["messages"][1]["content"] == said


def test_stop_before_the_answer_and_try_again(page: Page) -> None:
    page.route(CHAT, lambda route: None, times=1)  # it never gets there
    send(page, "Hello.")
    page.get_by_text("Waiting for the server").wait_for()
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("Stopped before the answer began").wait_for()
    page.get_by_role("button", name="Try again").click()
    page.locator(".figures").wait_for()
    assert page.locator(ANSWER).text_content()
    assert not page.get_by_role("button", name="Try again").is_visible()


def test_enter_with_shift_is_a_new_line(page: Page) -> None:
    field = page.get_by_label("Message", exact=True)
    field.press_sequentially("a")
    field.press("Shift+Enter")
    field.press_sequentially("b")
    body = sent(page, lambda: field.press("Enter"))
    assert body["messages"][0]["content"] == "a\nb"
    wait_until_answered(page)


def test_the_end_stays_in_view_unless_one_reads_above(page: Page) -> None:
    choose(page, max_tokens=600)
    send(page, "Hello.")
    log = page.locator("#log")
    wait_for(lambda: len(page.locator(ANSWER).text_content() or "") > 400)
    hidden = "log => log.scrollHeight - log.scrollTop - log.clientHeight"
    assert log.evaluate(hidden) < 40
    log.evaluate("log => (log.scrollTop = 0)")
    wait_until_answered(page)
    assert log.evaluate("log => log.scrollTop") == 0
    ask(page, "And?")
    assert log.evaluate(hidden) < 40  # with the figures


# Texts that go with a message


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


@pytest.mark.parametrize("content", [b"\xff\xfe\x00binary", b"null\x00byte"])
def test_a_binary_file_is_refused(page: Page, content: bytes) -> None:
    attach(page, "photo.jpg", content)
    page.get_by_text("photo.jpg is not a text file in UTF-8.").wait_for()
    assert page.locator(".composer .files li").count() == 0


# What goes wrong


def test_a_prompt_that_is_too_long_can_be_changed(page: Page, long_text: str) -> None:
    send(page, "What is this?", long_text * 3)
    page.get_by_text("No answer: the prompt has").wait_for()
    page.get_by_role("button", name="Change message").click()
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
    page.get_by_text("The answer broke off: the server is shutting down").wait_for()
    assert page.get_by_role("button", name="Try again").is_visible()
    assert page.locator(ANSWER).text_content() == "Half an"
    assert len(sent(page, lambda: ask(page, "Again?"))["messages"]) == 1  # half an answer is none


def test_a_lost_connection(page: Page) -> None:
    answer_once(page, events(piece("Half an")))
    send(page, "Hello.")
    page.get_by_text("the connection was lost before the answer was complete").wait_for()
    page.route(CHAT, lambda route: route.abort(), times=1)
    page.get_by_role("button", name="Try again").click()
    page.get_by_text("No answer: the server cannot be reached").wait_for()


def test_it_waits_for_the_model(browser: Browser, server: Server) -> None:
    with watched_page(browser, "about:blank") as page:
        loading = {"error": {"message": "the model is being loaded: try again in a moment"}}
        page.route("**/props", lambda route: route.fulfill(status=503, json=loading), times=2)
        page.goto(server.url)
        page.get_by_text("the model is being loaded").wait_for()
        page.get_by_text("8,192 tokens of context").wait_for()


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
    server = serve("--api-key", "open sesame")
    with watched_page(browser, server.url) as page:
        field = page.get_by_label("API key", exact=True)
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


# The memory view


def test_the_shading_is_what_the_memory_holds(page: Page, server: Server, long_text: str) -> None:
    ask(page, "What is this?", long_text)
    name = open_memory(page)
    memory = server.get(f"/memory/{name}").json()
    assert memory["boundaries"] >= 4
    wait_for(lambda: page.locator("#tokens p > span").count() == len(memory["tokens"]))
    assert page.locator("#tokens section").count() == memory["boundaries"] + 1
    drawn = "[...document.querySelectorAll('#tokens p > span')].map((token) => token.textContent)"
    assert page.evaluate(drawn) == memory["tokens"]
    seen = []
    for boundary in range(memory["boundaries"]):
        page.get_by_label("After").fill(str(boundary))
        for layer in range(memory["layers"]):
            page.get_by_label("Layer").fill(str(layer))
            place = f"/memory/{name}/counts?boundary={boundary}&layer={layer}"
            counts = server.get(place).json()["counts"]
            steps = {
                heads: f"kept k{8 * heads // memory['heads']}" for heads in range(1, memory["heads"] + 1)
            }
            expected = Counter(steps[count] for count in counts if count)
            wait_for(lambda expected=expected: shades(page) == expected)
            seen.append(expected)
            first = next(index for index, count in enumerate(counts) if count)
            assert "kept" in page.evaluate(f"{drawn.replace('textContent', 'className')}[{first}]")
    assert len({str(sorted(each.items())) for each in seen}) > memory["boundaries"]  # both sliders matter
    assert page.locator("#tokens .ahead").count() == 1  # what came after the last boundary


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
        return f"{json.dumps(memory['tokens'][index])} token {index} · held by {held[index]} of 4 heads"

    detail = page.locator("#detail")
    wait_for(lambda: detail.inner_text() == told(7))
    page.locator("#tokens").press("ArrowRight")
    assert detail.inner_text() == told(8)
    page.locator("#memory-map").click(position={"x": 2, "y": 8})
    assert "token 7" not in detail.inner_text()
    page.keyboard.press("Escape")
    assert not page.locator("#memory").is_visible()


@pytest.mark.parametrize(
    ("policy", "long", "sentence"),
    [
        ("h2o", False, "This prompt fits one chunk: nothing was forgotten."),
        ("full", True, "This prompt was read with full attention"),
    ],
)
def test_nothing_to_remember(page: Page, long_text: str, policy: str, long: bool, sentence: str) -> None:
    choose(page, policy=policy)
    ask(page, "What is this?", long_text if long else None)
    page.get_by_role("button", name="Show memory").click()
    page.get_by_text(sentence).wait_for()
    assert not page.locator("#memory-view").is_visible()


def test_memory_of_an_older_answer(page: Page, server: Server, long_text: str) -> None:
    ask(page, "What is this?", long_text)
    server.chat("Somebody else's question.")
    page.get_by_role("button", name="Show memory").click()
    page.get_by_text("keeps the memory of its last answer only").wait_for()
    ask(page, "And this?")  # an open view goes with the conversation
    page.locator("#tokens .kept").first.wait_for()
    assert page.get_by_role("button", name="Show memory").count() == 1


def test_thirty_thousand_tokens(page: Page) -> None:
    count, heads, ends = 30_000, 8, list(range(1024, 30_000, 1024))
    memory = {"tokens": [f"tok{i % 97} " for i in range(count)], "boundaries": len(ends), "ends": ends}
    memory |= {"layers": 2, "heads": heads, "memory_size": 512}
    page.route("**/memory/*", lambda route: route.fulfill(json=memory))
    page.route(
        "**/counts?*",
        lambda route: route.fulfill(
            json={"counts": [(i * 7 + len(route.request.url)) % 9 for i in range(count)]}
        ),
    )
    ask(page, "Hello.")
    page.get_by_role("button", name="Show memory").click()
    wait_for(lambda: page.locator("#tokens p > span").count() == count)
    slowest = page.evaluate("""async () => {
      const slider = document.getElementById("boundary");
      const frame = () => new Promise(requestAnimationFrame);
      let slowest = 0;
      for (let step = 0; step < 20; step++) {
        slider.value = step;
        slider.dispatchEvent(new Event("input"));
        let last = performance.now();
        for (let frames = 0; frames < 6; frames++) {
          await frame();
          slowest = Math.max(slowest, performance.now() - last);
          last = performance.now();
        }
      }
      return slowest;
    }""")
    assert slowest < 1000, f"a step of the slider stopped the page for {slowest:.0f} ms"


# Everybody's page


def test_html_is_text(page: Page) -> None:
    answer_once(page, events(piece(HTML), piece("", finish_reason="stop")) + b"data: [DONE]\n\n")
    attach(page, f"{HTML}.txt", (HTML * 200).encode())
    send(page, HTML)
    wait_until_answered(page)
    assert page.locator(ANSWER).text_content() == HTML
    assert page.locator(".turn .question .text").text_content() == HTML
    page.locator(".question summary").click()
    page.get_by_role("button", name="New chat").click()
    ask(page, "What is this?", HTML * 200)
    open_memory(page)
    page.locator("#tokens .kept").first.wait_for()
    assert page.locator("main img, main b, #memory img, #memory b").count() == 0
    assert page.evaluate("window.hacked") is None


def test_a_phone(browser: Browser, server: Server, long_text: str) -> None:
    def check() -> None:
        assert page.evaluate("document.documentElement.scrollWidth") <= 360

    phone = {"viewport": {"width": 360, "height": 640}, "has_touch": True, "is_mobile": True}
    with watched_page(browser, server.url, **phone) as page:
        check()
        choose(page, max_tokens=30, temperature=0)
        ask(page, "W" * 200 + " what is this?", long_text)
        check()
        page.get_by_role("button", name="Show memory").tap()
        page.locator("#tokens .kept").first.tap()
        page.get_by_text("held by").first.wait_for()
        check()
        assert page.locator("#memory").bounding_box() == {"x": 0, "y": 0, "width": 360, "height": 640}
        page.get_by_role("button", name="Close").tap()
        page.get_by_role("button", name="Settings").tap()
        check()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read(browser: Browser, server: Server, scheme: str) -> None:
    """Contrast of the text on each shade, by WCAG's formula: at least 4.5."""
    with watched_page(browser, server.url, color_scheme=scheme) as page:
        page.get_by_text("tokens of context").wait_for()
        ratios = page.evaluate("""() => {
          const card = document.createElement("div");
          card.className = "memory";
          document.body.append(card);
          const pen = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
          const light = (...layers) => {
            for (const color of layers) { pen.fillStyle = color; pen.fillRect(0, 0, 1, 1); }
            const [r, g, b] = [...pen.getImageData(0, 0, 1, 1).data].map((value) => {
              const c = value / 255;
              return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
            });
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
          };
          const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
          const base = getComputedStyle(card).backgroundColor;
          const ink = light(getComputedStyle(card).color);
          return [1, 2, 3, 4, 5, 6, 7, 8].map((step) => {
            const token = document.createElement("span");
            token.className = `kept k${step}`;
            card.append(token);
            return ratio(light(base, getComputedStyle(token).backgroundColor), ink);
          });
        }""")
        assert min(ratios) >= 4.5, ratios
