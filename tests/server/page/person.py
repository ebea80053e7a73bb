"""What a person does on the page and sees there."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

ANSWER = ".turn:last-of-type [data-part=answer]"
CHAT = "**/v1/chat/completions"
HTML = '<img src=x onerror="window.hacked = true"><b>bold</b>'

# What `choose` does to fields that are always there, without the dialog: to draw it takes as long as an answer.
CHOOSE = """(settings) => {
  const form = document.getElementById("settings-form");
  for (const [name, value] of Object.entries(settings)) form.elements[name].value = value;
  form.dispatchEvent(new Event("input"));
}"""

# Files are read once `go` is called.
SLOW_FILES = """() => {
  const read = Blob.prototype.arrayBuffer;
  const slow = new Promise((resolve) => (window.go = resolve));
  Blob.prototype.arrayBuffer = function () { return slow.then(() => read.call(this)); };
}"""

# What the progress bar says while it is shown, from now on.
RECORD = """() => {
  const seen = (window.seen = []);
  const note = () => {
    const bar = document.querySelector("[role=progressbar][aria-label='Reading the prompt']");
    const value = bar?.checkVisibility() && bar.getAttribute("aria-valuenow");
    if (value && seen.at(-1) !== value) seen.push(value);
  };
  new MutationObserver(note).observe(document.body, { subtree: true, attributes: true });
}"""


def choose(page: Page, **settings: Any) -> None:
    """Change settings as a person does; names are those of requests, `prefill.` for its members."""
    page.get_by_role("button", name="Settings", exact=True).click()
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
    """Choose a file and wait until the page has read it."""
    choose_file(page, name, content)
    page.get_by_role("button", name=f"Remove {name}").wait_for()


def choose_file(page: Page, name: str, content: bytes) -> None:
    page.locator("#file").set_input_files({"name": name, "mimeType": "text/plain", "buffer": content})


def wait_until_answered(page: Page) -> None:
    page.locator(".turn:last-of-type .answer[aria-busy=false]").wait_for()


def ask(page: Page, text: str, file: str | None = None) -> str:
    """Send a message → the words of the answer."""
    send(page, text, file)
    wait_until_answered(page)
    return shown(page)


def shown(page: Page) -> str:
    """The words of the last answer: Markdown makes paragraphs of its lines."""
    return words(page.locator(ANSWER).inner_text())


def words(text: str) -> str:
    return " ".join(text.split())


def sent(page: Page, act: Callable[[], object]) -> Any:
    """The body of the chat request that `act` leads to."""
    with page.expect_request(CHAT) as request:
        act()
    return request.value.post_data_json


def reload(page: Page) -> None:
    page.reload()
    page.get_by_text("tokens of context").wait_for()


def look_again(page: Page) -> None:
    """The page asks its server how it is, as it does every five seconds, and when it comes into view."""
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


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


class MainThread:
    """The thread that runs a page's scripts and draws it."""

    def __init__(self, page: Page) -> None:
        self._tools = page.context.new_cdp_session(page)
        self._tools.send("Performance.enable", {"timeDomain": "threadTicks"})

    def seconds(self) -> float:
        """Processor time so far, which a busy machine does not lengthen."""
        metrics = self._tools.send("Performance.getMetrics")["metrics"]
        return next(float(one["value"]) for one in metrics if one["name"] == "TaskDuration")


def events(*values: Any) -> bytes:
    """A stream as the server writes it, ended without [DONE]."""
    return b"".join(b"data: " + json.dumps(value).encode() + b"\n\n" for value in values)


def piece(text: str, **more: Any) -> Any:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None} | more
    return {"id": "chatcmpl-1", "choices": [choice]}


def whole(text: str) -> bytes:
    """A stream with this answer."""
    return events(piece(text), piece("", finish_reason="stop")) + b"data: [DONE]\n\n"


def answer_once(page: Page, body: bytes, **response: Any) -> None:
    """Put `body` in the place of the next answer."""

    def handle(route: Route) -> None:
        route.fulfill(**{"status": 200, "content_type": "text/event-stream", "body": body} | response)

    page.route(CHAT, handle, times=1)
