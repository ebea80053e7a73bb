"""The reader of a chat's answer, and the constraint on it, from the request's tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from h2o_runtime.answers.dialects.reader import AnswerReader
from h2o_runtime.answers.dialects.speech import Speech
from h2o_runtime.answers.request import Prompt
from h2o_runtime.server.answers.constraint import AnswerConstraint, CallGrammar, chat_constraint
from h2o_runtime.server.answers.schema_keywords import followed
from h2o_runtime.server.answers.tools import forced_tools, parameters, usable_tools
from h2o_runtime.server.apis.chat.schema import ChatRequest, Tool


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
    if forced := forced_tools(body):
        functions, left_out = _followed(forced)
        grammar = speech.call_grammar(functions, prompt.text or "")
        return AnswerConstraint(CallGrammar(grammar, required=True), "tools", left_out)
    usable = usable_tools(body)
    if not any(tool.function.strict for tool in usable):
        return None
    functions, left_out = _followed(usable)
    loose: Mapping[str, Any] = {"type": "object"}
    for tool in usable:
        if not tool.function.strict:
            functions[tool.function.name] = loose
    text = speech.strict_grammar(functions, prompt.text or "")
    return None if text is None else AnswerConstraint(CallGrammar(text), "tools", left_out)


def _followed(tools: list[Tool]) -> tuple[dict[str, Mapping[str, Any]], frozenset[str]]:
    """Schemas of functions as a grammar can follow them, by name, and the keywords that it cannot."""
    functions: dict[str, Mapping[str, Any]] = {}
    left_out: frozenset[str] = frozenset()
    for tool in tools:
        functions[tool.function.name], more = followed(parameters(tool))
        left_out |= more
    return functions, left_out
