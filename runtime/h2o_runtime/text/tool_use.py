"""Tools in a conversation whose chat template does not know them.

Many templates read only a role and a text: they silently drop `tools` and fail at a message with
`tool_calls`. For these, the definitions are added to the system message, a call becomes the text that the
model was told to write, and its result becomes a user message. If a template supports one of these, the
template does it. Where it refuses thoughts and a text beside a call, they become one text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from h2o_runtime.errors import InputError
from h2o_runtime.text.chat_template import ChatTemplate
from h2o_runtime.text.turns import Turns

Message = Mapping[str, Any]
Written = Callable[[str, Mapping[str, Any] | str], str]
Style = Callable[[Sequence[Message]], list[Message]]

_CAN_CALL = "You can call these functions:"
_HOW_TO_CALL = (
    "To call one, answer with nothing but this, with its name and its arguments:",
    "The user then tells you its result.",
)

# What a template must show of a call and of its result to count as supporting them.
_SIGNS = _NAME, _ARGUMENT, _RESULT = "probe_name", "probe_argument", "probe_result"
_OTHER_TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "A function.",
        "parameters": {"type": "object", "properties": {}},
    },
}
_PROBE = (
    {"role": "user", "content": "Hello."},
    {
        "role": "assistant",
        "tool_calls": [
            {
                "id": "call00001",  # some templates require nine letters and digits
                "type": "function",
                "function": {"name": _NAME, "arguments": {"x": _ARGUMENT}},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call00001", "name": _NAME, "content": _RESULT},
)
_PROBE_WITH_THOUGHTS = (
    _PROBE[0],
    {**_PROBE[1], "content": "I look.", "reasoning_content": "I need it."},
    _PROBE[2],
)


class ToolUse:
    """Renders conversations with tools, for templates that may not support tools, in an order that they accept."""

    def __init__(self, template: ChatTemplate, written: Written) -> None:
        """written: a call, by name and arguments, as the model writes it."""
        self._template = Turns(template)
        self._written = written
        self._styles: dict[bool, Style] = {}  # by: are there tools

    def render(
        self, messages: Sequence[Message], /, *, tools: Sequence[Message] | None = None, **options: Any
    ) -> str:
        """As `ChatTemplate.render`; the model sees the tools, the calls and their results."""
        if any(isinstance(message, Mapping) and _of_a_call(message) for message in messages):
            messages = self._style(bool(tools))(messages)
        text = self._template.render(messages, tools=tools, **options)
        if not tools or text != self._template.render(messages, **options):
            return text
        before, after = _HOW_TO_CALL
        example = self._written("NAME", {"ARGUMENT": "VALUE"})
        words = "\n".join([_CAN_CALL, *map(_text_of, tools), before, example, after])
        return self._template.render(_with_system(messages, words), **options)

    def _style(self, with_tools: bool) -> Style:
        """The message format in which the template shows calls."""
        if with_tools not in self._styles:
            known: tuple[Style, ...] = (list, _with_content, _as_text, _as_text_with_content)
            found = next((style for style in known if self._shows(style, _PROBE, with_tools)), self._in_words)
            styles: tuple[Style, ...] = (found, lambda messages: found(_with_one_text(messages)))
            suits = (style for style in styles if self._shows(style, _PROBE_WITH_THOUGHTS, with_tools))
            self._styles[with_tools] = next(suits, found)
        return self._styles[with_tools]

    def _in_words(self, messages: Sequence[Message]) -> list[Message]:
        return _in_words(messages, self._written)

    def _shows(self, style: Style, probe: Sequence[Message], with_tools: bool) -> bool:
        try:
            text = self._template.render(style(probe), tools=[_OTHER_TOOL] if with_tools else None)
        except InputError:
            return False
        return all(sign in text for sign in _SIGNS)


def _of_a_call(message: Message) -> bool:
    return message.get("role") == "tool" or bool(message.get("tool_calls"))


def _with_content(messages: Sequence[Message]) -> list[Message]:
    """For templates that concatenate the content without checking whether it is there."""
    return [
        message if message.get("content") is not None else {**message, "content": ""} for message in messages
    ]


def _with_one_text(messages: Sequence[Message]) -> list[Message]:
    """For templates that refuse thoughts and a text beside a call: gpt-oss's has one place for both."""
    return [
        {key: value for key, value in message.items() if key != "reasoning_content"}
        | {"content": f"{message['reasoning_content']}\n\n{message['content']}"}
        if message.get("tool_calls") and message.get("content") and message.get("reasoning_content")
        else message
        for message in messages
    ]


def _as_text(messages: Sequence[Message]) -> list[Message]:
    """For templates that expect a call's arguments as text, as in OpenAI's API."""
    return [
        {**message, "tool_calls": [_with_text(call) for call in message["tool_calls"]]}
        if message.get("tool_calls")
        else message
        for message in messages
    ]


def _as_text_with_content(messages: Sequence[Message]) -> list[Message]:
    return _with_content(_as_text(messages))


def _with_text(call: Message) -> Message:
    function = call["function"]
    return {**call, "function": {**function, "arguments": _text_of(function["arguments"])}}


def _text_of(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _in_words(messages: Sequence[Message], written: Written) -> list[Message]:
    """For templates that know only texts; the results of one message's calls become one message."""
    told: list[Message] = []
    names: dict[str, str] = {}  # names of functions, by their calls' ids
    after_result = False
    for message in messages:
        if message.get("tool_calls"):
            names |= {call["id"]: call["function"]["name"] for call in message["tool_calls"] if "id" in call}
            calls = "\n".join(_call_in_words(call, written) for call in message["tool_calls"])
            said = message.get("content")
            told.append({"role": message["role"], "content": f"{said}\n{calls}" if said else calls})
        elif message.get("role") == "tool":
            name = names.get(str(message.get("tool_call_id")), message.get("name"))
            result = _text_of({"result_of": name, "result": message.get("content")})
            if after_result:
                result = f"{told.pop()['content']}\n{result}"
            told.append({"role": "user", "content": result})
        else:
            told.append(message)
        after_result = message.get("role") == "tool"
    return told


def _call_in_words(call: Message, written: Written) -> str:
    return written(call["function"]["name"], call["function"]["arguments"])


def _with_system(messages: Sequence[Message], words: str) -> list[Message]:
    """The messages with `words` added to the system message, which comes first."""
    first, rest = messages[0], list(messages[1:])
    if first.get("role") == "system":
        return [{**first, "content": f"{first.get('content') or ''}\n\n{words}".strip()}, *rest]
    return [{"role": "system", "content": words}, first, *rest]
