"""Thoughts apart from answers, however the text is cut, and how much a model is asked to think."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.runtime.server.conftest import Serve, with_template
from tests.runtime.server.running import error_of

from h2o_runtime.server.reasoning_reader import ReasoningReader, Thought

CASES = [
    ("<think>\nTwo and two.\n</think>\n\nFour.", "", "Two and two.", "Four."),
    ("\n<think>a </thin k> b</think>c</think>", "", "a </thin k> b", "c</think>"),
    ("So be it.\n</think>\nYes", "<|assistant|><think>\n", "So be it.", "Yes"),
    ("<think>\n\n</think>\n\nNo thought", "", "", "No thought"),
    ("<think>cut off </th", "", "cut off </th", ""),
    (" <thin ice", "", "", " <thin ice"),
    ("Plain </think> text ", "", "", "Plain </think> text "),
    ("", "", "", ""),
]


def read(text: str, prompt: str, cuts: list[int], thinks: bool = True) -> tuple[str, str]:
    reader, found = ReasoningReader(thinks, prompt), []
    ends = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    for begin, end in itertools.pairwise(ends):
        found += reader.push(text[begin:end])
    found += reader.finish()
    thoughts = "".join(one.text for one in found if isinstance(one, Thought))
    return thoughts, "".join(one for one in found if isinstance(one, str))


@pytest.mark.parametrize(("text", "prompt", "thought", "answer"), CASES)
@given(cuts=st.lists(st.integers(0, 40), max_size=12))
def test_thoughts_and_answer(text: str, prompt: str, thought: str, answer: str, cuts: list[int]) -> None:
    assert read(text, prompt, cuts) == (thought, answer)


@given(cuts=st.lists(st.integers(0, 40), max_size=12))
def test_where_the_template_knows_of_no_thoughts_all_is_answer(cuts: list[int]) -> None:
    text = "<think>a</think> b"
    assert read(text, "<think>", cuts, thinks=False) == ("", text)


TEMPLATE = (
    "{% if enable_thinking is false %}<think></think>{% endif %}"
    "{% for message in messages %}{{ message['content'] }}{% endfor %}<think>\n"
)


def test_a_template_that_thinks(serve: Serve, tiny_bundle: Path, tmp_path: Path) -> None:
    """The example model never ends its thoughts; then there is no answer."""
    template = tmp_path / "thinks.jinja"
    template.write_text(TEMPLATE)
    server = serve("--ctx-size", 512, bundle=with_template(tiny_bundle, tmp_path / "bundle", template))
    message = server.chat(temperature=0).json()["choices"][0]["message"]
    assert message["reasoning_content"]
    assert message["content"] == ""
    longer: Any = server.chat(temperature=0, reasoning_effort="none").json()["usage"]["prompt_tokens"]
    assert longer > server.chat(temperature=0, reasoning_effort="high").json()["usage"]["prompt_tokens"]
    schema = {"type": "integer", "minimum": 5, "maximum": 9}
    assert server.chat(json_schema=schema).json()["choices"][0]["message"]["content"] in "56789"


def test_a_template_that_cannot_be_told_to_think(serve: Serve) -> None:
    error = error_of(serve("--ctx-size", 512).chat(reasoning_effort="low"), 400)
    assert error["param"] == "reasoning_effort"
