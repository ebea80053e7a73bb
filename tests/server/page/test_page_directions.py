"""Text that is written from right to left: each block has the direction of its own letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.server.page.person import ANSWER, answer_once, ask, attach, events, whole

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from playwright.sync_api import Page

ARABIC = "مرحبا بالعالم هذا نص عربي and English."
ANSWERED = f"""{ARABIC}

English first, then مرحبا.

`code` {ARABIC}

## {ARABIC}

- {ARABIC}
- English

> {ARABIC}

| {ARABIC} | English |
|-|-|
| {ARABIC} | English |

```
x = "{ARABIC}"
```
"""

# How the browser has drawn each element, and the words in it.
DRAWN = """elements => elements.map((element) => {
  const { direction, paddingLeft, paddingRight, borderRightWidth } = getComputedStyle(element);
  const right = parseFloat(paddingRight) + parseFloat(borderRightWidth);
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  const range = document.createRange();
  const at = (word) => {
    for (walker.currentNode = element; walker.nextNode(); ) {
      const start = walker.currentNode.data.indexOf(word);
      if (start < 0) continue;
      range.setStart(walker.currentNode, start);
      range.setEnd(walker.currentNode, start + word.length);
      return range.getBoundingClientRect();
    }
  };
  const [arabic, english, box] = [at("مرحبا"), at("English"), element.getBoundingClientRect()];
  return {
    direction,
    arabicOnTheRight: Boolean(arabic && english && arabic.left > english.right),
    fromRight: arabic && Math.abs(box.right - right - arabic.right),
    fromLeft: english && Math.abs(box.left + parseFloat(paddingLeft) - english.left),
    left: box.left, right: box.right,
  };
})"""


def drawn(page: Page, selector: str) -> Any:
    return page.locator(selector).evaluate_all(DRAWN)


def begins_on_the_right(each: Any) -> bool:
    return bool(each["direction"] == "rtl" and each["arabicOnTheRight"] and each["fromRight"] < 2)


def test_each_block_of_an_answer_has_its_own_direction(page: Page) -> None:
    answer_once(page, whole(ANSWERED))
    ask(page, "Hello.")
    for block in ("> p:nth-of-type(1)", "> h4", "li", "li p", "blockquote", "blockquote p", "th", "td"):
        assert begins_on_the_right(drawn(page, f"{ANSWER} {block}")[0]), block
    [paragraph] = drawn(page, f"{ANSWER} > p:nth-of-type(3)")
    assert (paragraph["direction"], paragraph["arabicOnTheRight"]) == ("rtl", True)  # after code on its right
    [arabic, item] = drawn(page, f"{ANSWER} li")
    assert arabic["right"] < item["right"]  # room for the mark, on the side where the text begins
    assert arabic["left"] < item["left"]
    for block in ("> p:nth-of-type(2)", "li:nth-of-type(2)"):
        [english] = drawn(page, f"{ANSWER} {block}")
        assert (english["direction"], english["fromLeft"] < 2) == ("ltr", True), block
    assert {each["direction"] for each in drawn(page, f"{ANSWER} code")} == {"ltr"}


def test_what_a_person_writes_and_a_model_thinks(page: Page) -> None:
    thought = {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {"reasoning_content": ARABIC}}]}
    answer_once(page, events(thought) + whole("Well."))
    attach(page, "report.txt", ARABIC.encode())
    page.get_by_label("Message", exact=True).fill(ARABIC)
    assert page.locator("#prompt").evaluate("field => getComputedStyle(field).direction") == "rtl"
    page.keyboard.press("Enter")
    page.locator(".answer[aria-busy=false]").wait_for()
    for summary in page.locator(".turn summary").all():
        summary.click()
    for selector in (".question .text", ".thoughts .text", ".question pre"):
        [shown] = drawn(page, selector)
        assert begins_on_the_right(shown), selector
