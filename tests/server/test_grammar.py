"""Grammars from JSON schemas: which can be followed, and that nothing else can be said."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from tests.conftest import EXAMPLE

from h2o_runtime.errors import ConfigError
from h2o_runtime.text import Tokenizer
from h2o_server.answers.grammar import GrammarCompiler

END = 1


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(EXAMPLE / "tokenizer.json", 4096, [END])


def say(compiler: GrammarCompiler, schema: dict[str, Any], seed: int, most: int = 400) -> str | None:
    """A random answer that the grammar allows; None when it did not come to its end."""
    dice = np.random.default_rng(seed)
    grammar = compiler.json_schema(schema, field="schema")
    answer = b""
    for _ in range(most):
        allowed = np.flatnonzero(grammar.allowed())
        assert allowed.size
        token = int(END if END in allowed else dice.choice(allowed))
        if token == END:
            return answer.decode("utf-8")
        grammar.accept(token)
        answer += compiler.token_bytes(token)
    return None


@pytest.mark.parametrize("seed", range(10))
def test_whatever_is_said_fits_the_schema(compiler: GrammarCompiler, seed: int) -> None:
    schema = {
        "type": "object",
        "properties": {
            "kind": {"enum": ["a", "é", "東"]},
            "on": {"type": "boolean"},
            "count": {"type": "integer", "minimum": -5, "maximum": 120},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2},
        },
        "required": ["kind", "on", "count", "tags"],
        "additionalProperties": False,
    }
    text = say(compiler, schema, seed)
    assert text is not None
    value = json.loads(text)
    assert list(value) == ["kind", "on", "count", "tags"]
    assert value["kind"] in ("a", "é", "東")
    assert isinstance(value["on"], bool)
    assert -5 <= value["count"] <= 120
    assert len(value["tags"]) <= 2
    assert all(len(tag) <= 3 for tag in value["tags"])


@pytest.mark.parametrize("seed", range(3))
def test_members_of_one_of_may_overlap(compiler: GrammarCompiler, seed: int) -> None:
    text = say(compiler, {"oneOf": [{"enum": ["one", 2]}, {"enum": [2, 3]}]}, seed)
    assert text is not None
    assert json.loads(text) in ("one", 2, 3)


def test_tokens_join_to_the_text(compiler: GrammarCompiler) -> None:
    text = "naïve 東京 😀\n\x00 end"
    ids = Tokenizer.load(EXAMPLE).encode(text)
    assert b"".join(compiler.token_bytes(token) for token in ids).decode() == text


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "person"},
        {"$ref": "#"},
        {"$ref": "#/$defs/nowhere"},
        {"type": "string", "pattern": "("},
        {"enum": []},
        {"const": "\ud800"},
        {"type": "number", "multipleOf": 0},
        {"enum": [str(number) for number in range(100_000)]},
    ],
)
def test_a_schema_that_cannot_be_followed(compiler: GrammarCompiler, schema: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        compiler.json_schema(schema, field="where.it.was")
    assert caught.value.field == "where.it.was"
    assert str(caught.value).startswith("where.it.was ")
    assert "\n" not in str(caught.value)


def test_a_schema_of_itself_alone_is_refused_in_our_words(compiler: GrammarCompiler) -> None:
    with pytest.raises(ConfigError, match="no answer fits it: it consists of itself"):
        compiler.json_schema({"$ref": "#"}, field="schema")


def test_a_token_that_is_not_allowed_is_refused(compiler: GrammarCompiler) -> None:
    grammar = compiler.json_schema({"type": "null"}, field="schema")
    with pytest.raises(ConfigError, match="schema"):
        grammar.accept(int(np.flatnonzero(~grammar.allowed())[100]))


def test_a_model_without_an_end_has_no_grammars_but_bytes() -> None:
    compiler = GrammarCompiler(EXAMPLE / "tokenizer.json", 4096, [])
    assert compiler.token_bytes(92)
    with pytest.raises(ConfigError, match="no token that ends"):
        compiler.json_schema({}, field="response_format")


GBNF = """# two colours
root ::= colour (" and " colour)? "."
colour ::= "red" | "gr" [ae] "y" | "\\"blue\\""
"""


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_said_follows_a_gbnf_grammar(compiler: GrammarCompiler, seed: int) -> None:
    dice = np.random.default_rng(seed)
    grammar = compiler.gbnf(GBNF, field="grammar")
    answer = b""
    while True:
        token = int(dice.choice(np.flatnonzero(grammar.allowed())))
        if token == END:
            break
        grammar.accept(token)
        answer += compiler.token_bytes(token)
    assert answer.endswith(b".")
    assert set(answer[:-1].decode().split(" and ")) <= {"red", "grey", "gray", '"blue"'}


@pytest.mark.parametrize(
    "text", ["root", "root ::= nowhere", 'other ::= "x"', "root ::= [", 'root ::= "\\', "\n"]
)
def test_what_is_no_gbnf(compiler: GrammarCompiler, text: str) -> None:
    with pytest.raises(ConfigError, match="grammar") as caught:
        compiler.gbnf(text, field="grammar")
    assert caught.value.field == "grammar"
    assert "\n" not in str(caught.value)
