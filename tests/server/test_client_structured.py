"""JSON by construction, as the official client asks for it; checked by pydantic, which made the schema."""

from __future__ import annotations

import json
from enum import Enum
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, ConfigDict, Field

ASK = [{"role": "user", "content": "A person, as JSON."}]


class Colour(Enum):
    RED = "red"
    GREEN = "green"


class Pet(BaseModel):
    model_config = ConfigDict(extra="forbid")
    colour: Colour
    legs: int = Field(ge=0, le=4)


class Person(BaseModel):
    """Short enough for an answer of a model that knows nothing of persons."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=6)
    adult: bool
    pets: list[Pet] = Field(max_length=2)
    size: int | None = Field(ge=0, le=250)


def schema_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def test_the_official_clients_own_parsing(openai: Any) -> None:
    parsed = openai.chat.completions.parse(
        model="m", messages=ASK, response_format=Person, max_tokens=300, seed=1
    )
    assert isinstance(parsed.choices[0].message.parsed, Person)


class Bag(BaseModel):
    model_config = ConfigDict(extra="forbid")
    uniqueItems: bool  # noqa: N815 - a name like a keyword's
    numbers: set[Annotated[int, Field(ge=0, le=99)]] = Field(max_length=3)


@pytest.mark.parametrize("stream", [False, True])
def test_a_keyword_that_no_grammar_can_keep_is_left_out_and_told(openai: Any, stream: bool) -> None:
    schema = Bag.model_json_schema()
    assert schema["properties"]["numbers"]["uniqueItems"]
    asked = {"model": "m", "messages": ASK, "max_tokens": 200, "stream": stream}
    told = openai.chat.completions.with_raw_response.create(response_format=schema_format(schema), **asked)
    assert told.headers["x-schema-left-out"] == "uniqueItems"
    if not stream:
        Bag.model_validate_json(told.parse().choices[0].message.content)
    del schema["properties"]["numbers"]["uniqueItems"]
    free = openai.chat.completions.with_raw_response.create(response_format=schema_format(schema), **asked)
    assert "x-schema-left-out" not in free.headers


@pytest.mark.parametrize("seed", range(3))
def test_json_object_is_an_object(openai: Any, seed: int) -> None:
    """Or the beginning of one, where the limit comes first."""
    answer = openai.chat.completions.create(
        model="m", messages=ASK, response_format={"type": "json_object"}, max_tokens=200, seed=seed
    )
    text = answer.choices[0].message.content
    assert text.startswith("{")
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(text), dict)
