"""Chat templates that never end or take all memory: one sentence in seconds, and nothing else is held up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import psutil
import pytest
from tests.ignoring import ignores_signals

from h2o_runtime.errors import BundleError
from h2o_runtime.text import ChatTemplate, chat_template
from h2o_runtime.text.chat_template import Renderer, TemplateError

pytestmark = pytest.mark.timeout(600)
ASKED = [{"role": "user", "content": "Hello."}]
LOOP = 3 * "{% for a in range(9999) %}" + 3 * "{% endfor %}"
ENDLESS = {
    "loops": LOOP,
    "recursion of a macro": "{% macro m(n) %}{{ m(n) }}{{ m(n) }}{% endmacro %}{{ m(1) }}",
    "one long operation": "{% set n = 7 %}{{ n ** (n ** (n * n)) }}",
    "a wide text": "{{ 'a' * (10 ** 11) }}",
    "a list that holds itself twice": "{% set n = namespace(x=[]) %}"
    "{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
}


SELDOM = ("loops", "recursion of a macro")  # loops are ended below too, and a macro as a list is


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.nightly if case in SELDOM else ()) for case in ENDLESS]
)
def test_a_template_that_does_not_end_is_ended(case: str) -> None:
    """Within a second of processor time; another test has the usual limit."""
    renderer = Renderer({"default": ENDLESS[case]}, seconds=1)
    before = time.thread_time()
    with pytest.raises(TemplateError, match=r"takes more than 1 s of processor|MemoryError|RecursionError"):
        renderer.render("default", {"messages": ASKED})
    assert time.thread_time() - before < 1
    renderer.close()


@pytest.mark.parametrize("brackets", ["[", "(", "{% if a %}", "{{ -", "{% for a in b %}"])
def test_a_template_that_is_too_deep_is_a_sentence(brackets: str) -> None:
    opened = brackets if brackets.startswith("{") else "{{ " + brackets
    source = opened + brackets.replace("{{ ", "") * 30_000
    with pytest.raises(BundleError, match=r"chat_template.jinja: the chat template 'default' has"):
        ChatTemplate({"default": source}, {}, "chat_template.jinja")


def test_the_next_rendering_is_as_if_nothing_had_been(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "Renderer", partial(Renderer, seconds=1))
    template = ChatTemplate(
        {"default": "{% if messages[0].content == 'loop' %}" + LOOP + "{% endif %}fine"}, {}, "source"
    )
    with pytest.raises(BundleError, match="takes more than 1 s of processor time"):
        template.render([{"role": "user", "content": "loop"}])
    assert template.render(ASKED) == "fine"
    template.close()
    assert template.render(ASKED) == "fine"
    template.close()


def test_no_process_is_left_behind() -> None:
    before = set(psutil.Process().children())
    template = ChatTemplate({"default": "fine"}, {}, "source")
    assert template.render(ASKED) == "fine"
    (process,) = set(psutil.Process().children()) - before
    assert ignores_signals(process.pid)
    del template
    process.wait(10)
    assert set(psutil.Process().children()) <= before


def test_sigterm_works_while_a_template_does_not_end(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{% set n = 7 %}{{ n ** (n ** (n * n)) }}")
    program = (
        f"from h2o_runtime.text import ChatTemplate; ChatTemplate.load({str(tmp_path)!r}).render({ASKED})"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL)
    while not psutil.Process(process.pid).children():
        time.sleep(0.05)
    child = psutil.Process(process.pid).children()[0]
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(20) == -signal.SIGTERM
    child.wait(20)
