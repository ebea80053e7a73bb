"""The reader of a chat's answer, and the constraint on it, from the request's tools."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from h2o_runtime.answers.dialects.reader import AnswerReader
from h2o_runtime.answers.dialects.speech import Speech
from h2o_runtime.answers.request import Prompt
from h2o_server.answers.constraint import AnswerConstraint, CallGrammar, GivenSchema, chat_constraint
from h2o_server.answers.followed_schema import followed
from h2o_server.answers.tools import forced_tools, parameters, usable_tools
from h2o_server.apis.chat.schema import ChatRequest


def answer_reader(body: ChatRequest, prompt: Prompt, speech: Speech) -> AnswerReader:
    """Reads one answer to a chat. An answer with a constraint of the client's own has no thoughts."""
    forced, usable = forced_tools(body), usable_tools(body)
    return speech.reader(
        {tool.function.name: parameters(tool) for tool in forced or usable},
        prompt.text or "",
        thinks=chat_constraint(body) is None,
        forced=bool(forced),
        only_one=body.parallel_tool_calls is False,
        strict=any(tool.function.strict for tool in usable),
    )


def answer_constraint(body: ChatRequest, prompt: Prompt, speech: Speech) -> AnswerConstraint | None:
    """The constraint on an answer: the client's own, a required call, or the schemas of strict functions."""
    constraint = chat_constraint(body)
    if constraint is not None:
        return constraint
    forced, usable = forced_tools(body), usable_tools(body)
    enforced = forced or [tool for tool in usable if tool.function.strict]
    if not enforced:
        return None
    functions: dict[str, Mapping[str, Any]] = {
        tool.function.name: {"type": "object"} for tool in forced or usable
    }
    places = {id(tool): place for place, tool in enumerate(body.given_tools or ())}
    schemas, left_out = [], frozenset[str]()
    for tool in enforced:
        name = f"tools[{places[id(tool)]}] ({tool.function.name})"
        given = parameters(tool)
        functions[tool.function.name], more = followed(given, name=f"{name}: parameters", field="tools")
        left_out |= more
        schemas.append(GivenSchema(given, partial(_one_call, tool.function.name, speech), name))
    write = speech.call_grammar if forced else speech.strict_grammar
    text = write(functions, prompt.text or "")
    if text is None:
        return None
    return AnswerConstraint(CallGrammar(text, required=bool(forced)), "tools", left_out, tuple(schemas))


def _one_call(name: str, speech: Speech, schema: Mapping[str, Any]) -> CallGrammar:
    """A grammar of calls of one function with these parameters."""
    return CallGrammar(speech.call_grammar({name: followed(schema)[0]}, ""))
