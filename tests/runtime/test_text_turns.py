"""Orders of roles that agents write, in templates that accept any order and in those that insist on one."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from tests.runtime.chat_templates import NEEDS_A_QUESTION

from h2o_runtime.errors import InputError
from h2o_runtime.text import ChatTemplate
from h2o_runtime.text.turns import Turns

ANY = "{% for m in messages %}[{{ m.role + ': ' + m.content }}]{% endfor %}"
REFUSED = "{{ raise_exception('no') }}"
FIRST_ONLY = (  # as Qwen 3.5's
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    + REFUSED
    + "{% endif %}{% endfor %}"
)
NONE_AT_ALL = "{% for m in messages if m.role == 'system' %}" + REFUSED + "{% endfor %}"  # as Gemma 2's
ALTERNATING = (  # as Mistral's and Gemma 3's
    "{% set rest = messages[1:] if messages[0].role == 'system' else messages %}"
    "{% for m in rest %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    + REFUSED
    + "{% endif %}{% endfor %}"
)
DROPPING = (  # as Llama 2's, without its check
    "{% if messages[0].role == 'system' %}[system: {{ messages[0].content }}]{% endif %}"
    "{% for m in messages if m.role != 'system' %}[{{ m.role + ': ' + m.content }}]{% endfor %}"
)


def turn(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


A, B = turn("system", "a"), turn("system", "b")
C, D = turn("user", "c"), turn("user", "d")
SAID = turn("assistant", "e")


@pytest.mark.parametrize(
    ("template", "messages", "shown"),
    [
        (ANY, [A, B, C, D, SAID, B], "[system: a][system: b][user: c][user: d][assistant: e][system: b]"),
        (FIRST_ONLY + ANY, [A, B, C, D], "[system: a\n\nb][user: c\n\nd]"),
        (FIRST_ONLY + ANY, [A, C, SAID, D, B], "[system: a][user: c][assistant: e][user: d\n\nb]"),
        (FIRST_ONLY + ANY, [C, B], "[user: c\n\nb]"),
        (NONE_AT_ALL + ANY, [A, B, C, SAID, B], "[user: a\n\nb\n\nc][assistant: e][user: b]"),
        (
            ALTERNATING + ANY,
            [A, B, C, D, SAID, B, C],
            "[system: a\n\nb][user: c\n\nd][assistant: e][user: b\n\nc]",
        ),
        (NONE_AT_ALL + ALTERNATING + ANY, [A, C, D], "[user: a\n\nc\n\nd]"),
        (DROPPING, [A, C, SAID, D], "[system: a][user: c][assistant: e][user: d]"),
        (DROPPING, [A, B, C], "[system: a\n\nb][user: c]"),
        (DROPPING, [A, C, B], "[system: a][user: c\n\nb]"),
    ],
)
def test_every_order_is_shown(template: str, messages: list[dict[str, Any]], shown: str) -> None:
    assert Turns(ChatTemplate({"default": template}, {}, "test")).render(messages) == shown


def test_a_conversation_that_grows_keeps_its_beginning() -> None:
    """Otherwise every turn would be read anew."""
    turns = Turns(ChatTemplate({"default": ALTERNATING + ANY}, {}, "test"))
    talk = [A, C, SAID, D, B, SAID, C]
    texts = [turns.render(talk[:count]) for count in (2, 4, 5, 7)]
    for shorter, longer in itertools.pairwise(texts):
        assert longer.startswith(shorter.removesuffix("]"))


def test_what_no_order_helps_is_refused() -> None:
    with pytest.raises(InputError, match="no"):
        Turns(ChatTemplate({"default": REFUSED}, {}, "test")).render([A, C])


def test_calls_are_never_joined() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {}}}
    talk = [
        C,
        {**SAID, "tool_calls": [call]},
        {"role": "tool", "content": "x"},
        {**SAID, "tool_calls": [call]},
    ]
    with pytest.raises(InputError):
        Turns(ChatTemplate({"default": ALTERNATING + ANY}, {}, "test")).render(talk)


CALL = {**SAID, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {}}}]}
RESULT = turn("tool", "x")
RESPONSE = turn("user", "<tool_response>x</tool_response>")
GO_ON = turn("user", "Continue.")


@pytest.mark.parametrize(
    ("template", "talk", "asked"),
    [
        (NEEDS_A_QUESTION, [A, CALL, RESULT], [A, GO_ON, CALL, RESULT]),
        (NEEDS_A_QUESTION, [CALL, RESULT], [GO_ON, CALL, RESULT]),
        (NEEDS_A_QUESTION, [A, SAID, CALL, RESULT, C], [A, GO_ON, SAID, CALL, RESULT, C]),
        (NEEDS_A_QUESTION, [A, RESPONSE, SAID], [A, GO_ON, RESPONSE, SAID]),
        (NEEDS_A_QUESTION, [A, SAID, RESPONSE], [A, GO_ON, SAID, RESPONSE]),
        (NEEDS_A_QUESTION, [A, SAID], [A, GO_ON, SAID]),
        (NEEDS_A_QUESTION, [A, SAID, C, CALL, RESULT], None),
        (NEEDS_A_QUESTION, [A, C, RESPONSE], None),
        (ALTERNATING + ANY, [A, SAID, C], [A, GO_ON, SAID, C]),
        (ALTERNATING + ANY, [A, C, SAID], None),
        (ANY, [A, SAID, RESULT], None),
    ],
)
def test_a_template_that_wants_a_question_gets_one(
    template: str, talk: list[dict[str, Any]], asked: list[dict[str, Any]] | None
) -> None:
    """Behind the system message, unless the user's question stands before any call or result."""
    source = ChatTemplate({"default": template}, {}, "test")
    assert Turns(source).render(talk) == source.render(asked or talk)


def test_a_trimmed_conversation_that_grows_keeps_its_beginning() -> None:
    turns = Turns(ChatTemplate({"default": NEEDS_A_QUESTION}, {}, "test"))
    talk = [A, CALL, RESULT, CALL, RESULT, SAID, C, SAID]
    texts = [turns.render(talk[:count], add_generation_prompt=False) for count in range(2, len(talk) + 1)]
    for shorter, longer in itertools.pairwise(texts):
        assert longer.startswith(shorter)
