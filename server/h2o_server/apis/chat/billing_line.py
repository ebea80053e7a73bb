"""A line that Anthropic's clients put before the system's text, for another service's bills. It is left alone.

A number in it is another one in every request: were it shown to the model, all after it would be read again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from h2o_server.apis.chat.schema import Message, SystemMessage

BILLING_LINE = "x-anthropic-billing-header"

# Its fields alone: gateways that join texts may put nothing after it. In another form, the whole line.
_LINE = re.compile(rf"\A{BILLING_LINE}:(?:(?: *[\w.-]+=[^;\s]*;?)+|.*)\s*")


def without_billing_line(messages: Sequence[Message]) -> list[Message]:
    """What the model is shown: the same messages, except one of the system that has or is such a line."""
    return [shown for message in messages if (shown := _without(message)) is not None]


def _without(message: Message) -> Message | None:
    if not isinstance(message, SystemMessage) or message.content is None:
        return message
    given = [message.content] if isinstance(message.content, str) else [part.text for part in message.content]
    texts = [_LINE.sub("", text) for text in given]
    if texts == given:
        return message
    return message.model_copy(update={"content": "".join(texts)}) if any(texts) else None
