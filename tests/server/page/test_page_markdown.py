"""An answer's Markdown: what it looks like, what it cannot do, and how it grows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.server.page.person import ANSWER, HTML, MainThread, answer_once, ask, attach, events, whole
from tests.server.running import wait_for

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from playwright.sync_api import Page

LONG = 100_000
STRUCTURE = """(text) => import("/static/markdown.js").then(({ Markdown }) => {
  const root = document.createElement("div");
  new Markdown(root).show(text, false);
  for (const head of root.querySelectorAll(".code-head")) head.remove();
  for (const node of root.querySelectorAll("*"))
    for (const name of ["class", "dir", "tabindex", "rel", "target", "title"]) node.removeAttribute(name);
  return root.innerHTML.replaceAll("<div>", "").replaceAll("</div>", "");
})"""
GROWN = """([text, cuts]) => import("/static/markdown.js").then(({ Markdown }) => {
  const [whole, grown] = [document.createElement("div"), document.createElement("div")];
  new Markdown(whole).show(text, false);
  const growing = new Markdown(grown);
  for (const cut of cuts) growing.show(text.slice(0, cut), true);
  growing.show(text, false);
  return [whole.innerHTML, grown.innerHTML];
})"""

# What CommonMark makes of it, but for headings, which are two levels lower, and line breaks, which are kept.
CASES = {
    "one\ntwo\n\nthree": "<p>one\ntwo</p><p>three</p>",
    "# A #\n### B\n#no": "<h3>A</h3><h5>B</h5><p>#no</p>",
    "**a *b* c** _d_ ~~e~~": "<p><strong>a <em>b</em> c</strong> <em>d</em> <del>e</del></p>",
    "***a*** **b** __c__": "<p><strong><em>a</em></strong> <strong>b</strong> <strong>c</strong></p>",
    "2 * 3 * 4 snake_case_name **no": "<p>2 * 3 * 4 snake_case_name **no</p>",
    r"\*a\* \`b\`": "<p>*a* `b`</p>",
    "`a*b*` ``c`d`` `e": "<p><code>a*b*</code> <code>c`d</code> `e</p>",
    "- a\n- b\n  - c\n\n  d\n- e": "<ul><li><p>a</p></li><li><p>b</p><ul><li><p>c</p></li></ul><p>d</p></li>"
    "<li><p>e</p></li></ul>",
    "3. a\n4. b\n\ntext": '<ol start="3"><li><p>a</p></li><li><p>b</p></li></ol><p>text</p>',
    "1. a\n   ```\n   x\n\n   y\n   ```\n2. b": '<ol start="1"><li><p>a</p><pre><code>x\n\ny</code></pre></li>'
    "<li><p>b</p></li></ol>",
    "> a\n> - b\n\nc": "<blockquote><p>a</p><ul><li><p>b</p></li></ul></blockquote><p>c</p>",
    "```py\n\tif a < b:\n```\nx": "<pre><code>\tif a &lt; b:</code></pre><p>x</p>",
    "````\n```\n````": "<pre><code>```</code></pre>",
    "~~~\na": "<pre><code>a</code></pre>",
    "a\n\n    def __init__():\n\n        pass\n\nb": "<p>a</p><pre><code>def __init__():\n\n    pass</code></pre>"
    "<p>b</p>",
    "a\n***\nb": "<p>a</p><hr><p>b</p>",
    "|a|b|\n|-|:-:|\n|1|2|3|\n\nc": "<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td>"
    "<td>2</td></tr></tbody></table><p>c</p>",
    "a | b\nc": "<p>a | b\nc</p>",
    "[a **b**](https://x.org/a_(b)?c&d)": '<p><a href="https://x.org/a_(b)?c&amp;d">a <strong>b</strong></a></p>',
    "(see https://x.org/a_b, too)": '<p>(see <a href="https://x.org/a_b">https://x.org/a_b</a>, too)</p>',
    "<http://x.org/>": '<p><a href="http://x.org/">http://x.org/</a></p>',
    "![a](https://x.org/a.png)": '<p><a href="https://x.org/a.png">a</a></p>',
}


def test_what_it_looks_like(page: Page) -> None:
    for text, nodes in CASES.items():
        assert page.evaluate(STRUCTURE, text) == nodes
        assert page.evaluate(STRUCTURE, text.replace("\n", "\r\n")) == nodes


def test_code_is_copied(page: Page) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    answer_once(page, whole("So:\n\n```python\nprint('<b>')\n```\n"))
    ask(page, "Hello.")
    page.get_by_role("button", name="Copy", exact=True).click()
    wait_for(lambda: page.evaluate("navigator.clipboard.readText()") == "print('<b>')")
    assert page.locator(f"{ANSWER} .code-head").inner_text().startswith("python")


HOSTILE = [
    HTML,
    "<script>window.hacked = true</script>",
    f"```{HTML}\n{HTML}\n",
    f"| {HTML} |\n|-|\n| {HTML} |",
    "[a](javascript:window.hacked=true) [b](JaVaScRiPt:x) [c](data:text/html,x) [d](//evil.example) [e](file:///etc)",
    "[a](java\tscript:x) [b](\x01javascript:x) <javascript:x> [c](&#106;avascript:x) [d](/props) [e](vbscript:x)",
    '[a](https://x.org/"onmouseover="window.hacked=true)',
    '![a](https://x.org/a.png "onerror=x") https://x.org/"onclick="x"',
]


def test_what_it_cannot_do(page: Page) -> None:
    """The page also asks nobody for anything: see watched_page."""
    for text in HOSTILE:
        answer_once(page, whole(text))
        ask(page, "Hello.")
    answers = page.locator(".answer .markdown")
    tags = "img, b, script, iframe, form, style, [onerror], [onclick], [onmouseover]"
    assert answers.count() == len(HOSTILE)
    assert answers.locator(tags).count() == 0
    addresses = answers.locator("a").evaluate_all("links => links.map((link) => link.href)")
    assert addresses
    assert all(re.match("https?://x[.]org/", address) for address in addresses), addresses
    assert page.evaluate("window.hacked") is None


PARTS = [
    *("a", " ", "\n", "\n\n", "*", "**", "_", "`", "```", "~~", "- ", "1. ", "> ", "# "),
    *("|", "-", "    ", "[", "](", ")", "https://x.org"),
]


def test_however_it_grows_it_ends_the_same(page: Page) -> None:
    @settings(max_examples=40)
    @given(st.lists(st.sampled_from(PARTS), max_size=40), st.data())
    def grown(parts: list[str], data: Any) -> None:
        text = "".join(parts)
        cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=20)))
        whole, after = page.evaluate(GROWN, [text, cuts])
        assert after == whole

    grown()


COSTLY = [
    *("*a ", "**a *b ", "[a](b ", "[a](()", "`a ", "> ", "- ", "# ", "|", "~", " ", "\n", "\\"),
    *("<a>", "_", "https://a.b/..) "),
]


def test_a_long_answer_takes_linear_time(page: Page) -> None:
    """A square of its length would be minutes."""
    thread = MainThread(page)
    for part in COSTLY:
        begin = thread.seconds()
        page.evaluate(
            """(text) => import("/static/markdown.js").then(({ Markdown }) => {
              new Markdown(document.createElement("div")).show(text, false);
            })""",
            (part * LONG)[:LONG] + "x",
        )
        assert thread.seconds() - begin < 10, part


def test_half_a_mark_is_not_seen(page: Page) -> None:
    text = "Some **bold** and `code`, *thin* [name](https://x.org/long).\n\n- one **b**\n\n```py\nx = 1\n```\nend"
    seen = page.evaluate(
        """(text) => import("/static/markdown.js").then(({ Markdown }) => {
          const root = document.createElement("div");
          const growing = new Markdown(root);
          return [...text].map((_, index) => {
            growing.show(text.slice(0, index + 1), true);
            return root.textContent;
          });
        })""",
        text,
    )
    assert not [each for each in seen if re.search("[*`]|https", each)]


def test_what_is_selected_and_copied_stays(page: Page) -> None:
    kept = page.evaluate(
        """() => import("/static/markdown.js").then(({ Markdown }) => {
          const root = document.createElement("div");
          document.body.append(root);
          const growing = new Markdown(root);
          growing.show("- one\\n- two\\n\\n```\\na\\n", true);
          const code = root.querySelector("code");
          const nodes = [...root.querySelectorAll("li"), code, code.firstChild];
          growing.show("- one\\n- two\\n\\n```\\na\\nb\\n```\\nmore", true);
          return nodes.map((node) => node.isConnected);
        })"""
    )
    assert kept == [True, True, True, True]


# Text that is written from right to left: each block has the direction of its own letters

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
