"""Constraints on an answer, from the several parameters that can set one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from h2o_runtime.errors import ConfigError
from h2o_runtime.server.answers.schema_keywords import without_left_out
from h2o_runtime.server.answers.tools import call_schema
from h2o_runtime.server.apis.chat.schema import (
    ChatRequest,
    JsonObjectFormat,
    JsonSchemaFormat,
    Tool,
    ToolChoice,
)
from h2o_runtime.server.apis.shared.generation import Generation

_TOOLS = "tools"  # the field of a call that is required


@dataclass(frozen=True)
class AnswerConstraint:
    """The constraint of an answer.

    grammar: a JSON schema, or text in GBNF. field: the parameter that sets it.

    left_out: keywords of the schema that the grammar does not enforce.
    """

    grammar: Mapping[str, Any] | str
    field: str
    left_out: frozenset[str] = frozenset()

    @property
    def is_json(self) -> bool:
        """Whether the answer is a JSON text of its own."""
        return not isinstance(self.grammar, str)

    @property
    def is_call(self) -> bool:
        """Whether the answer is a call of a function."""
        return self.field == _TOOLS

    @classmethod
    def of_schema(cls, schema: Mapping[str, Any], field: str) -> AnswerConstraint:
        followed, left_out = without_left_out(schema)
        return cls(followed, field, left_out)


def chat_constraint(body: ChatRequest) -> AnswerConstraint | None:
    """The constraint on a chat's answer; None if it is free. Raises ConfigError if two parameters set one."""
    tools, own, asked = _forced_tools(body), generation_constraint(body), _response_format(body)
    other = asked or own
    if tools and other is not None:
        name = "response_format" if other is asked else other.field
        raise ConfigError(
            f"{name} cannot be used while tool_choice requires a call: leave out one of the two", field=name
        )
    if asked is not None and own is not None:
        raise ConfigError(
            f"response_format cannot be honoured together with {own.field}: leave out one of the two",
            field="response_format",
        )
    return AnswerConstraint.of_schema(call_schema(tools), _TOOLS) if tools else other


def generation_constraint(body: Generation) -> AnswerConstraint | None:
    """The constraint from llama.cpp's parameters. Errors are those of `chat_constraint`."""
    if body.grammar is not None and body.json_schema is not None:
        raise ConfigError("grammar and json_schema exclude each other: give one of the two", field="grammar")
    if body.grammar is not None:
        return AnswerConstraint(body.grammar, "grammar")
    return None if body.json_schema is None else AnswerConstraint.of_schema(body.json_schema, "json_schema")


def _response_format(body: ChatRequest) -> AnswerConstraint | None:
    if isinstance(body.response_format, JsonObjectFormat):
        return AnswerConstraint({"type": "object"}, "response_format")
    if isinstance(body.response_format, JsonSchemaFormat):
        schema = body.response_format.json_schema.schema_ or {"type": "object"}
        return AnswerConstraint.of_schema(schema, "response_format.json_schema.schema")
    return None


def _forced_tools(body: ChatRequest) -> list[Tool]:
    """The tools one of which the answer must call; empty if the answer is free."""
    if body.tool_choice is None or body.tool_choice in ("none", "auto"):
        return []
    if not body.tools:
        raise ConfigError(
            "tool_choice requires a call, but tools is empty: add a function to tools", field="tool_choice"
        )
    if isinstance(body.tool_choice, ToolChoice):
        name = body.tool_choice.function.name
        chosen = [tool for tool in body.tools if tool.function.name == name]
        if not chosen:
            raise ConfigError(f"tool_choice names {name!r}, which is not in tools", field="tool_choice")
        return chosen
    return body.tools
