"""Thoughts apart from answers, however the text is cut, and how much a model is asked to think."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.server.conftest import with_template
from tests.server.running import Server

from h2o_runtime.answers.dialects import DIALECTS
from h2o_runtime.answers.dialects.answer import Thought
from h2o_runtime.answers.dialects.speech import Speech

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


def read(text: str, prompt: str, cuts: list[int], thinks: bool) -> tuple[str, str]:
    reader, found = Speech(DIALECTS["hermes"](), thinks, {}).reader({}, prompt), []
    ends = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    for begin, end in itertools.pairwise(ends):
        found += reader.push(text[begin:end])
    found += reader.finish()
    thoughts = "".join(one.text for one in found if isinstance(one, Thought))
    return thoughts, "".join(one for one in found if isinstance(one, str))


@pytest.mark.parametrize(("text", "prompt", "thought", "answer"), CASES)
@given(cuts=st.lists(st.integers(0, 40), max_size=12))
def test_thoughts_and_answer(text: str, prompt: str, thought: str, answer: str, cuts: list[int]) -> None:
    assert read(text, prompt, cuts, thinks=True) == (thought, answer)
    # Where the template knows of no thoughts, all is the answer.
    assert read(text, prompt, cuts, thinks=False) == ("", text)


TEMPLATE = (
    "{% if enable_thinking is false %}<think></think>{% endif %}"
    "{% for message in messages %}{{ message['content'] }}{% endfor %}<think>\n"
)


@pytest.fixture(scope="module")
def thinking_server(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("thinks")
    (folder / "thinks.jinja").write_text(TEMPLATE)
    bundle = with_template(tiny_bundle, folder / "bundle", folder / "thinks.jinja")
    with Server(bundle, "--ctx-size", 512) as server:
        yield server


def test_a_template_that_thinks(thinking_server: Server) -> None:
    """The example model never ends its thoughts; then there is no answer."""
    server = thinking_server
    message = server.chat(temperature=0).json()["choices"][0]["message"]
    assert message["reasoning_content"]
    assert message["content"] == ""
    longer: Any = server.chat(temperature=0, reasoning_effort="none").json()["usage"]["prompt_tokens"]
    assert longer > server.chat(temperature=0, reasoning_effort="high").json()["usage"]["prompt_tokens"]
    talk = {"model": "m", "messages": [{"role": "user", "content": "Hello."}]}
    counts = [
        server.post("/v1/messages/count_tokens", talk | more).json()["input_tokens"]
        for more in ({}, {"thinking": {"type": "disabled"}})
    ]
    assert longer == counts[1] > counts[0]
    schema = {"type": "integer", "minimum": 5, "maximum": 9}
    assert server.chat(json_schema=schema).json()["choices"][0]["message"]["content"] in "56789"


def test_a_template_that_cannot_be_told_to_think(server: Server) -> None:
    answer = server.chat(reasoning_effort="low")
    assert answer.status_code == 200
    assert answer.headers["X-Left-Alone"] == "reasoning_effort"


def test_anthropics_client_finds_thinking_blocks(thinking_server: Server) -> None:
    library = pytest.importorskip("anthropic")
    client = library.Anthropic(base_url=thinking_server.url, api_key="none", max_retries=0)
    asked = {"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": "Hello."}]}
    whole = client.messages.create(**asked, extra_body={"temperature": 0.0})
    (block,) = whole.content
    assert block.type == "thinking"
    assert (
        block.thinking
        == thinking_server.chat(max_tokens=8, temperature=0).json()["choices"][0]["message"][
            "reasoning_content"
        ]
    )
    with client.messages.stream(**asked, extra_body={"temperature": 0.0}) as stream:
        deltas = [event.thinking for event in stream if event.type == "thinking"]
    assert stream.get_final_message().content == whole.content
    assert "".join(deltas) == block.thinking
    talk = [*asked["messages"], {"role": "assistant", "content": whole.content}, asked["messages"][0]]
    assert client.messages.create(**asked | {"messages": talk}).content


def test_openais_client_finds_reasoning_items(thinking_server: Server) -> None:
    library = pytest.importorskip("openai")
    client = library.OpenAI(base_url=f"{thinking_server.url}/v1", api_key="none", max_retries=0)
    asked: dict[str, Any] = {"model": "m", "input": "Hello.", "max_output_tokens": 8, "temperature": 0}
    whole = client.responses.create(**asked)
    (item,) = whole.output
    assert (item.type, item.summary, item.status, whole.output_text) == ("reasoning", [], "incomplete", "")
    with client.responses.stream(**asked) as stream:
        told = list(stream)
    deltas = [event.delta for event in told if event.type == "response.reasoning_text.delta"]
    final = told[-1].response
    assert "".join(deltas) == item.content[0].text == final.output[0].content[0].text
    talk = [{"role": "user", "content": "Hello."}, item.model_dump(), {"role": "user", "content": "And?"}]
    assert client.responses.create(**asked | {"input": talk}).output


def test_an_answer_that_ended_inside_its_thoughts_comes_back(thinking_server: Server) -> None:
    """Other servers give it no content, ours an empty one."""
    sizes = set()
    for content in (None, ""):
        talk = [
            {"role": "user", "content": "Hello."},
            {"role": "assistant", "content": content, "reasoning_content": "So"},
            {"role": "user", "content": "And?"},
        ]
        answer = thinking_server.chat(messages=talk)
        assert answer.status_code == 200, answer.text
        sizes.add(answer.json()["usage"]["prompt_tokens"])
    assert len(sizes) == 1
