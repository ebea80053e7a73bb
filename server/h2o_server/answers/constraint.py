"""A client's request as runtime requests, and the constraint on their answers, which several parameters can set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from h2o_runtime.answers.request import Request
from h2o_runtime.errors import ConfigError
from h2o_server.answers.followed_schema import followed
from h2o_server.answers.tools import forced_tools
from h2o_server.apis.chat.schema import ChatRequest, JsonObjectFormat, JsonSchemaFormat
from h2o_server.apis.shared.generation import Generation
from h2o_server.apis.shared.types import is_text


@dataclass(frozen=True)
class CallGrammar:
    """A grammar in llguidance's notation, of calls in a model's dialect.

    required: whether the answer is a call, and no text
    """

    text: str
    required: bool = False


Grammar = Mapping[str, Any] | str | CallGrammar  # a JSON schema, text in GBNF, or calls


@dataclass(frozen=True)
class GivenSchema:
    """A schema as the client gives it.

    grammar: what follows it, or another schema in its place. function: whose parameters it describes
    """

    schema: Mapping[str, Any]
    grammar: Callable[[Mapping[str, Any]], Grammar]
    function: str = ""


@dataclass(frozen=True)
class AnswerConstraint:
    """The constraint of an answer.

    grammar     what the answer follows
    field       the parameter that sets it
    left_out    keywords of the schemas that the grammar does not enforce
    schemas     those that the grammar is made of
    parameters  what the request calls a function's schema
    """

    grammar: Grammar
    field: str
    left_out: frozenset[str] = frozenset()
    schemas: tuple[GivenSchema, ...] = ()
    parameters: str = "parameters"

    @property
    def is_call(self) -> bool:
        """Whether the answer is a call of a function."""
        return isinstance(self.grammar, CallGrammar) and self.grammar.required

    @property
    def is_whole(self) -> bool:
        """Whether the answer is a text of its own, which continues no other."""
        return self.is_call or isinstance(self.grammar, Mapping)

    @classmethod
    def of_schema(cls, schema: Mapping[str, Any], field: str) -> AnswerConstraint:
        """Raises ConfigError."""
        if not is_text(schema):
            raise ConfigError(
                f"{field} has half of a surrogate pair, which is no character: leave it out", field=field
            )
        grammar, left_out = followed(schema, name=field, field=field)
        return cls(grammar, field, left_out, (GivenSchema(schema, lambda other: followed(other)[0]),))


@dataclass(frozen=True)
class Choices:
    """One request for each choice.

    constraint: what all of them follow; None if they are free. left_alone: what the client's request has that no
    answer here depends on, by its names.
    """

    requests: list[Request]
    constraint: AnswerConstraint | None
    left_alone: frozenset[str] = frozenset()


def chat_constraint(body: ChatRequest) -> AnswerConstraint | None:
    """The client's own constraint on a chat's answer; None if there is none.

    Raises ConfigError if two parameters set one, or if a call is required beside it.
    """
    own, asked = generation_constraint(body), _response_format(body)
    other = asked or own
    if forced_tools(body) and other is not None:
        name = "response_format" if other is asked else other.field
        raise ConfigError(
            f"{name} cannot be used while tool_choice requires a call: leave out one of the two", field=name
        )
    if asked is not None and own is not None:
        raise ConfigError(
            f"response_format cannot be honoured together with {own.field}: leave out one of the two",
            field="response_format",
        )
    return other


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
