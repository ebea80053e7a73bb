"""Grammars from JSON schemas: which can be followed, and that nothing else can be said."""

from __future__ import annotations

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


def test_tokens_join_to_the_text(compiler: GrammarCompiler) -> None:
    text = "naïve 東京 😀\n\x00 end"
    ids = Tokenizer.load(EXAMPLE).encode(text)
    assert b"".join(compiler.token_bytes(token) for token in ids).decode() == text


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
