"""Chat templates: equal to transformers' `apply_chat_template` for the usual styles, and safe to run."""

from __future__ import annotations

import enum
import itertools
import json
import shutil
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from h2o_runtime.errors import BundleError, InputError
from h2o_runtime.text import ChatTemplate, Tokenizer

TINY = Path(__file__).parents[2] / "examples" / "tiny-llama"

# Small templates, each with the constructs that the published ones of its family use.
LLAMA3 = """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = '' %}
{%- endif %}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now("%Y") %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\nYear: ' + date_string + '\\n' }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message + '<|eot_id|>' }}
{%- for message in messages %}
    {%- if 'tool_calls' in message %}
        {{- message.tool_calls[0].function.arguments | tojson }}
    {%- else %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim }}
    {%- endif %}
    {{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
CHATML = """{% for message in messages %}
    {% if loop.first and message.role != 'system' %}
<|im_start|>system
You are helpful.<|im_end|>
    {% endif %}
    {% if message.content is undefined %}{% continue %}{% endif %}
    {% if message.role == 'assistant' %}
        {% generation %}
{{ '<|im_start|>assistant\\n' + message.content + '<|im_end|>\\n' }}
        {% endgeneration %}
    {% else %}
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {% endif %}
{% endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
{{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{% endif %}
"""
MISTRAL = """{{ bos_token }}{% set ns = namespace(count=0) %}{% for message in messages %}
{% if message['role'] not in ['user', 'assistant'] %}
{{ raise_exception('Only user and assistant roles are supported, not ' + message['role']) }}{% endif %}
{% if (message['role'] == 'user') != (ns.count % 2 == 0) %}
{{ raise_exception('Roles must alternate user/assistant/user/assistant/...') }}{% endif %}
{% set ns.count = ns.count + 1 %}
{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% else %}
{{- message['content'] + eos_token }}{% endif %}{% endfor %}"""
STYLES = {"llama3": LLAMA3, "chatml": CHATML, "mistral": MISTRAL}
REASONING = "{% for message in messages %}{{ message | tojson(sort_keys=true) }}\n{% endfor %}"

TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"properties": {"x": {"description": "<b> & 'é'"}}}},
}
TALK = [
    {"role": "user", "content": "  Hi <b>&amp; é😀</b>\n"},
    {"role": "assistant", "content": "Hello {{ not a template }}"},
    {"role": "user", "content": "Bye"},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(TINY / "tokenizer.json", tmp_path)
    shutil.copy(TINY / "config.json", tmp_path)
    return tmp_path


def write(folder: Path, template: Any = None, **config: Any) -> None:
    config = {"bos_token": "<s>", "eos_token": {"__type": "AddedToken", "content": "</s>"}, **config}
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def theirs(folder: Path) -> Callable[..., str]:
    """transformers' `apply_chat_template`, to text."""
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    return partial(tokenizer.apply_chat_template, tokenize=False)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("generation_prompt", [True, False])
def test_equality_with_transformers(folder: Path, style: str, generation_prompt: bool) -> None:
    write(folder, STYLES[style])
    ours, expect = ChatTemplate.load(folder), theirs(folder)
    talks: list[list[dict[str, Any]]] = [TALK, TALK[:1]]
    if style != "mistral":
        talks.append([{"role": "system", "content": " Be brief. "}, *TALK])
        talks.append([{"role": "system", "content": "x", "name": None}, *TALK])
    if style == "llama3":
        call = {"function": {"name": "f", "arguments": {"b": 1, "a": "é<"}}}
        talks.append([*TALK[:1], {"role": "assistant", "content": None, "tool_calls": [call]}])
    if style == "chatml":
        talks.append([*TALK, {"role": "assistant", "content": None}])
    for talk in talks:
        arguments: dict[str, Any] = {"add_generation_prompt": generation_prompt}
        for extra in ({}, {"tools": [TOOL]}, {"enable_thinking": False, "date_string": "1999"}):
            arguments.update(extra)
            expected = expect(talk, **arguments)
            assert ours.render(talk, **arguments) == expected
            assert expected.strip()


@pytest.mark.parametrize("count", range(4))
def test_reasoning_has_the_names_that_it_has_in_transformers(folder: Path, count: int) -> None:
    write(folder, REASONING)
    ours, expect = ChatTemplate.load(folder), theirs(folder)
    for names in itertools.permutations(("reasoning_content", "thinking", "reasoning"), count):
        for values in itertools.product(("One.", "", None), repeat=count):
            told = {name: value and f"{value} {name}" for name, value in zip(names, values, strict=True)}
            talk = [{"role": "assistant", "content": "Yes", **told}]
            assert ours.render(talk, add_generation_prompt=False) == expect(talk)


def test_the_example_checkpoint_has_one_bos() -> None:
    tokenizer, chat = Tokenizer.load(TINY), ChatTemplate.load(TINY)
    text = chat.render([{"role": "user", "content": "hello"}])
    assert text == theirs(TINY)([{"role": "user", "content": "hello"}], add_generation_prompt=True)
    for special in (True, False):
        assert tokenizer.encode(text, add_special_tokens=special).count(tokenizer.bos_id or 0) == 1


def test_named_templates(folder: Path) -> None:
    named = [
        {"name": "default", "template": "D{{ messages[0].content }}"},
        {"name": "tool_use", "template": "T{{ tools | length }}"},
    ]
    write(folder, named)
    ours = ChatTemplate.load(folder)
    for tools in (None, [TOOL], []):
        assert ours.render(TALK, tools=tools) == theirs(folder)(TALK, tools=tools)
    write(folder, named[1:])
    ours = ChatTemplate.load(folder)
    assert ours.render(TALK, tools=[TOOL]) == "T1"
    with pytest.raises(BundleError, match="only for tool_use: one that is named default"):
        ours.render(TALK)


def test_template_files_win_over_the_configuration(folder: Path) -> None:
    write(folder, "from the configuration")
    (folder / "chat_template.jinja").write_text("from the file é", encoding="utf-8")
    assert ChatTemplate.load(folder).render(TALK) == theirs(folder)(TALK) == "from the file é"
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("with tools")
    ours = ChatTemplate.load(folder)
    assert ours.render(TALK, tools=[TOOL]) == theirs(folder)(TALK, tools=[TOOL]) == "with tools"
    assert ours.render(TALK) == "from the file é"


def test_messages_may_be_any_mapping_of_plain_values() -> None:
    class Role(str, enum.Enum):
        USER = "user"

    template = ChatTemplate({"default": "{{ messages[0].role }}: {{ messages[0].content }}"}, {}, "test")
    assert template.render([OrderedDict(role=Role.USER, content="x")]) == "user: x"
    message = {"role": "user", "content": None, "n": 1.5}
    template.render([message])
    assert message == {"role": "user", "content": None, "n": 1.5}


def test_a_refusal_is_passed_on(folder: Path) -> None:
    write(folder, MISTRAL)
    template = ChatTemplate.load(folder)
    with pytest.raises(InputError, match="refuses these messages: Roles must alternate"):
        template.render([TALK[0], TALK[0]])
    with pytest.raises(InputError, match="roles are supported, not system"):
        template.render([{"role": "system", "content": "x"}])


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "the conversation is empty"),
        (["hello"], "message 0 must be an object"),
        ([TALK[0], {"content": "x"}], "message 1 must be an object"),
        ([{"role": 3, "content": "x"}], "message 0 must be an object"),
        ([{"role": "user", "content": object()}], "message 0 holds a value of type object"),
        ([{"role": "user"}], "cannot render these messages"),
        ([{"role": "user", "content": 3}], "cannot render these messages"),
    ],
)
def test_messages_that_cannot_be_rendered(folder: Path, messages: Any, words: str) -> None:
    write(folder, MISTRAL)
    with pytest.raises(InputError, match=words):
        ChatTemplate.load(folder).render(messages)


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ raise_exception.__globals__.keys() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
    ],
)
def test_a_template_cannot_leave_the_sandbox(template: str) -> None:
    with pytest.raises(BundleError, match=r"test: the chat template broke a limit"):
        ChatTemplate({"default": template}, {}, "test").render(TALK)


@pytest.mark.parametrize(
    "template", ["{{ raise_exception.__globals__ }}", "{{ '{0.__class__}'.format(messages) }}"]
)
def test_what_the_sandbox_hides_is_empty(template: str) -> None:
    assert ChatTemplate({"default": template}, {}, "test").render(TALK) == ""


def test_no_template_is_a_sentence(folder: Path) -> None:
    for setup in (lambda: None, lambda: write(folder)):
        setup()
        with pytest.raises(BundleError, match="has no chat template, so it is probably a base model"):
            ChatTemplate.load(folder)


def test_a_broken_template_is_named(folder: Path) -> None:
    write(folder, "line one\n{% if %}")
    with pytest.raises(
        BundleError, match=r"tokenizer_config\.json: .*'default' has a syntax error in line 2"
    ):
        ChatTemplate.load(folder)
    (folder / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(BundleError, match=r"chat_template\.jinja is not valid UTF-8"):
        ChatTemplate.load(folder)


@pytest.mark.parametrize("value", [3, ["x"], [{"name": "default"}], [{"name": "default", "template": 1}]])
def test_a_template_of_the_wrong_kind_is_named(folder: Path, value: Any) -> None:
    write(folder, value)
    with pytest.raises(BundleError, match=r"tokenizer_config\.json: chat_template must be text"):
        ChatTemplate.load(folder)
