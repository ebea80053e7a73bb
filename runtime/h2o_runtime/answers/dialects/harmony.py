"""The channels of gpt-oss: every message has a header that says whether it is thought, text or a call.

<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json
<|message|>{…}<|call|>
"""

from __future__ import annotations

import re
from collections.abc import Callable

from h2o_runtime.answers.dialects import json_parts
from h2o_runtime.answers.dialects.answer import Answer
from h2o_runtime.answers.dialects.dialect import Dialect, Thinking
from h2o_runtime.answers.dialects.incoming import Incoming, Wait

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>", _START)
_LONGEST_HEADER = 1000
_RECIPIENT = re.compile(r"to=functions\.([^\s<]+)")


class Harmony(Dialect):
    name = "harmony"
    title = "gpt-oss"
    begins = (_CHANNEL, _START)
    ends = (_MESSAGE, "<|constrain|>", *_ENDS[:-1])
    thinking = Thinking(f"{_CHANNEL}analysis{_MESSAGE}", "<|end|>", f"{_START}assistant")
    marked = False
    shown = (_CHANNEL, _MESSAGE)
    before, after, closing = f"{_CHANNEL}commentary to=functions.", f" <|constrain|>json{_MESSAGE}", ""

    def read(self, text: Incoming, answer: Answer) -> Wait[None]:
        mark: str | None = None
        while True:
            if mark in self.begins:
                mark = yield from self._message(text, answer)
                continue
            piece, mark = yield from text.until(_MESSAGE, _CHANNEL, *_ENDS)
            answer.text(piece)
            if mark is None and not piece:
                return

    def _message(self, text: Incoming, answer: Answer) -> Wait[str | None]:
        """Read a message behind the first mark of its header → the mark that ended it."""
        header, mark = yield from text.all_until(_MESSAGE, most=_LONGEST_HEADER)
        if mark is None:
            return None  # a header is never text
        recipient = _RECIPIENT.search(header)
        if recipient is None or recipient[1] not in answer.functions:
            return (yield from self._body(text, answer.thought if "analysis" in header else answer.text))
        yield from text.blanks()
        if (yield from json_parts.arguments(text, answer, recipient[1])):
            return None
        answer.begin(recipient[1])  # the model wrote something else, or was cut
        return (yield from self._body(text, answer.arguments))

    def _body(self, text: Incoming, tell: Callable[[str], None]) -> Wait[str | None]:
        while True:
            piece, mark = yield from text.until(*_ENDS)
            tell(piece)
            if mark is not None or not piece:
                return mark
