"""The channels of gpt-oss: every message has a header that says whether it is thought, text or a call.

<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json
<|message|>{…}<|call|>
"""

from __future__ import annotations

import re

from h2o_runtime.answers.dialects import json_parts
from h2o_runtime.answers.dialects.answer import Answer
from h2o_runtime.answers.dialects.base import Dialect, Thinking
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

    @classmethod
    def spoken(cls, template: str) -> bool:
        return _CHANNEL in template and _MESSAGE in template

    def opening(self, name: str) -> str:
        return f"{_CHANNEL}commentary to=functions.{name} <|constrain|>json{_MESSAGE}"

    @property
    def closing(self) -> str:
        return ""

    def read(self, text: Incoming, answer: Answer) -> Wait[None]:
        while True:
            piece, mark = yield from text.until(_MESSAGE, _CHANNEL, *_ENDS)
            answer.text(piece)
            if mark is None and not piece:
                return
            if mark in self.begins:
                yield from self._message(text, answer)

    def _message(self, text: Incoming, answer: Answer) -> Wait[None]:
        """Read a message behind the first mark of its header."""
        header, mark = yield from text.all_until(_MESSAGE, most=_LONGEST_HEADER)
        if mark is None:
            return  # a header is never text
        recipient = _RECIPIENT.search(header)
        if recipient is not None and recipient[1] in answer.functions:
            yield from self._call(text, answer, recipient[1])
            return
        tell = answer.thought if "analysis" in header else answer.text
        while True:
            piece, mark = yield from text.until(*_ENDS)
            tell(piece)
            if mark == _START:
                yield from self._message(text, answer)
            if mark is not None or not piece:
                return

    def _call(self, text: Incoming, answer: Answer, name: str) -> Wait[None]:
        yield from text.blanks()
        if not (yield from json_parts.arguments(text, answer, name)):
            answer.begin(name)  # the model wrote something else, or was cut
            while True:
                piece, mark = yield from text.until(*_ENDS)
                answer.arguments(piece)
                if mark is not None or not piece:
                    break
            if mark == _START:
                yield from self._message(text, answer)
