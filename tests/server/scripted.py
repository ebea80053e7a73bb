"""A model that says what a script has: a grammar of one sentence forces each answer of its own weights."""

from __future__ import annotations

import json

_FORCED = """
import json
from dataclasses import replace
from h2o_server.answers.constraint import AnswerConstraint
from h2o_server.request_builder import RequestBuilder
answers, chat = json.loads({answers!r}), RequestBuilder.chat
def scripted(self, body):
    said = sum(message.role == "assistant" for message in body.messages)
    text = answers[min(said, len(answers) - 1)] if body.tools else {untold!r}
    grammar = AnswerConstraint("root ::= " + json.dumps(text), "grammar")
    return replace(chat(self, body), constraint=grammar)
RequestBuilder.chat = scripted
"""


def script(answers: list[str], untold: str = "A title") -> str:
    """The code of a server that gives `answers`, one for each turn of the assistant in a conversation.

    The last one is for all further turns. Conversations without tools, such as those for a title, get `untold`.
    """
    return _FORCED.format(answers=json.dumps(answers), untold=untold)


def call(name: str, **arguments: object) -> str:
    """A call as the model writes it."""
    return json.dumps({"name": name, "parameters": arguments})
