"""Conversations in an order of roles that the chat template accepts.

Agents write system messages anywhere, and several messages of one role in a row. Many templates refuse that, or
show only the system message at the beginning. Agents also drop the oldest messages of a long conversation, and some
templates refuse one without a user's question. For these the messages are changed as little as it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from h2o_runtime.errors import InputError
from h2o_runtime.text.chat_template import ChatTemplate

Message = Mapping[str, Any]
Change = Callable[[Sequence[Message]], list[Message]]


class Turns:
    """Renders conversations, for templates that insist on an order of roles, or on a question at the beginning.

    The changes depend on the template alone: a conversation that grows keeps the beginning of its text.
    """

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._changes: Sequence[Change] | None = None  # found by the first rendering

    def render(self, messages: Sequence[Message], /, **options: Any) -> str:
        """As `ChatTemplate.render`."""
        if self._changes is None:
            order = next((order for order in _ORDERS if self._shows(_ORDERED, order)), list)
            begins = (
                begin for begin in _BEGINNINGS if all(self._shows(one, begin, order) for one in _UNASKED)
            )
            self._changes = next(begins, list), order
        return self._template.render(_changed(messages, self._changes), **options)

    def _shows(self, probe: Sequence[Message], *changes: Change) -> bool:
        """Whether the template accepts the changed messages, and leaves nothing out."""
        try:
            text = self._template.render(_changed(probe, changes))
        except InputError:
            return False
        return all(message["content"] in text for message in probe)


def _changed(messages: Sequence[Message], changes: Sequence[Change]) -> Sequence[Message]:
    for change in changes:
        messages = change(messages)
    return messages


def _probe(*roles: str) -> tuple[Message, ...]:
    return tuple({"role": role, "content": f"probe_{index}"} for index, role in enumerate(roles))


# Messages of one role in a row, and system messages after the beginning, in the place of any other.
_ORDERED = _probe(
    *("system", "system", "user", "user", "assistant", "user", "system", "assistant", "system", "user")
)
_UNASKED = _probe("assistant"), _probe("assistant", "user")


def _joined(messages: Sequence[Message]) -> list[Message]:
    """Messages of one role in a row as one, except those with calls or thoughts."""
    turns: list[Message] = []
    for message in messages:
        if turns and _is_plain(message) and _is_plain(turns[-1]) and message["role"] == turns[-1]["role"]:
            turns[-1] = {**turns[-1], "content": f"{turns[-1]['content']}\n\n{message['content']}"}
        else:
            turns.append(message)
    return turns


def _system_first(messages: Sequence[Message]) -> list[Message]:
    """System messages only at the beginning; later ones are the user's."""
    leading = _leading(messages)
    later = (
        {**message, "role": "user"} if _is_system(message) else message for message in messages[leading:]
    )
    return _joined([*messages[:leading], *later])


def _without_system(messages: Sequence[Message]) -> list[Message]:
    """No system message: the user's first words begin with it."""
    return _joined([{**message, "role": "user"} if _is_system(message) else message for message in messages])


def _asked_first(messages: Sequence[Message]) -> list[Message]:
    """A question of the user after the system messages."""
    before = _leading(messages)
    if before < len(messages) and _is_question(messages[before]):
        return list(messages)
    return [*messages[:before], {"role": "user", "content": "Continue."}, *messages[before:]]


def _asked_before_calls(messages: Sequence[Message]) -> list[Message]:
    """A question of the user before any call and result; a greeting may come before it."""
    first = next((message for message in messages if not _is_system(message) and not _is_said(message)), None)
    return list(messages) if first is not None and _is_question(first) else _asked_first(messages)


# The first that a template shows is used: the earlier, the less it changes.
_ORDERS = (list, _joined, _system_first, _without_system)
_BEGINNINGS = (list, _asked_before_calls, _asked_first)


def _leading(messages: Sequence[Message]) -> int:
    """How many system messages the conversation begins with."""
    return next((at for at, message in enumerate(messages) if not _is_system(message)), len(messages))


def _is_system(message: Message) -> bool:
    return isinstance(message, Mapping) and message.get("role") == "system"


def _is_said(message: Message) -> bool:
    """The assistant's, without a call."""
    return (
        isinstance(message, Mapping) and message.get("role") == "assistant" and not message.get("tool_calls")
    )


def _is_question(message: Message) -> bool:
    """The user's, and no result of a tool in the user's name, which templates that want a question do not count."""
    content = (
        message.get("content") if isinstance(message, Mapping) and message.get("role") == "user" else None
    )
    return content is not None and not str(content).startswith("<tool_response>")


def _is_plain(message: Message) -> bool:
    """A system's, user's or assistant's text and nothing else."""
    return (
        isinstance(message, Mapping)
        and message.get("role") in ("system", "user", "assistant")
        and isinstance(message.get("content"), str)
        and not message.get("tool_calls")
        and not message.get("reasoning_content")
    )
