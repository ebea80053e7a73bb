"""Conversations in an order of roles that the chat template accepts.

Agents write system messages anywhere, and several messages of one role in a row. Many templates refuse that, or
show only the system message at the beginning. For these the messages are reordered as little as it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from h2o_runtime.errors import InputError
from h2o_runtime.text.chat_template import ChatTemplate

__all__ = ["Turns"]

Message = Mapping[str, Any]


class Turns:
    """Renders conversations, for templates that insist on an order of roles.

    The order depends on the template alone: a conversation that grows keeps the beginning of its text.
    """

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._order: Callable[[Sequence[Message]], list[Message]] | None = (
            None  # found by the first rendering
        )

    def render(self, messages: Sequence[Message], /, **options: Any) -> str:
        """As `ChatTemplate.render`."""
        if self._order is None:
            self._order = next((order for order in _ORDERS if self._shows(order)), list)
        return self._template.render(self._order(messages), **options)

    def _shows(self, order: Callable[[Sequence[Message]], list[Message]]) -> bool:
        """Whether the template accepts the order, and leaves nothing out."""
        try:
            text = self._template.render(order(_PROBE))
        except InputError:
            return False
        return all(message["content"] in text for message in _PROBE)


# Messages of one role in a row, and system messages after the beginning, in the place of any other.
_PROBE = tuple(
    {"role": role, "content": f"probe_{index}"}
    for index, role in enumerate(
        ("system", "system", "user", "user", "assistant", "user", "system", "assistant", "system", "user")
    )
)


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


# The first that a template shows is used: the earlier, the less it changes.
_ORDERS = (list, _joined, _system_first, _without_system)


def _leading(messages: Sequence[Message]) -> int:
    """How many system messages the conversation begins with."""
    return next((at for at, message in enumerate(messages) if not _is_system(message)), len(messages))


def _is_system(message: Message) -> bool:
    return isinstance(message, Mapping) and message.get("role") == "system"


def _is_plain(message: Message) -> bool:
    """A system's, user's or assistant's text and nothing else."""
    return (
        isinstance(message, Mapping)
        and message.get("role") in ("system", "user", "assistant")
        and isinstance(message.get("content"), str)
        and not message.get("tool_calls")
        and not message.get("reasoning_content")
    )
