"""Splits an answer, as it is generated, into thoughts, text and calls of functions."""

from __future__ import annotations

from collections.abc import Iterable

from h2o_runtime.answers.request import Prompt
from h2o_runtime.server.answers.call_reader import CallReader, Delta
from h2o_runtime.server.answers.constraint import chat_constraint
from h2o_runtime.server.answers.reasoning_reader import ReasoningReader, Thought
from h2o_runtime.server.apis.chat.schema import ChatRequest, ToolChoice


class AnswerReader:
    """Reads one answer to a chat. Calls are in the answer's own text, not in its thoughts.

    calls: the reader of calls, which knows how many there were
    """

    def __init__(self, body: ChatRequest, prompt: Prompt, thinks: bool) -> None:
        """thinks: whether the chat template supports thoughts; an answer with a constraint has none."""
        self.calls = _call_reader(body)
        self._reasoning = ReasoningReader(thinks and chat_constraint(body) is None, prompt.text or "")

    def push(self, text: str) -> list[Delta | Thought]:
        """The events that are certain after `text`."""
        return self._read(self._reasoning.push(text))

    def finish(self) -> list[Delta | Thought]:
        """The rest, as no more comes."""
        return [*self._read(self._reasoning.finish()), *self.calls.finish()]

    def _read(self, texts: Iterable[Thought | str]) -> list[Delta | Thought]:
        read: list[Delta | Thought] = []
        for text in texts:
            read += [text] if isinstance(text, Thought) else self.calls.push(text)
        return read


def _call_reader(body: ChatRequest) -> CallReader:
    """Reads the calls of functions that the answer may call."""
    choice = body.tool_choice
    names = {tool.function.name for tool in body.tools or ()}
    if choice == "none":
        names = set()
    elif isinstance(choice, ToolChoice):
        names = {choice.function.name}
    forced = choice == "required" or isinstance(choice, ToolChoice)
    return CallReader(names, forced=forced, only_one=body.parallel_tool_calls is False)
