"""Answers in grammars of random schemas, checked by a validator of JSON schemas."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
from tests.conftest import EXAMPLE
from tests.server.random_schemas import exact, has_maps, random_schema

from h2o_server.answers.constraint import AnswerConstraint
from h2o_server.answers.grammar import GrammarCompiler, UnfollowableError
from h2o_server.answers.schema_faults import located

jsonschema_rs = pytest.importorskip("jsonschema_rs")
END = 1
MOST = 150  # tokens of an answer


def test_every_answer_is_valid_and_every_refusal_has_a_place(pytestconfig: pytest.Config) -> None:
    compiler = GrammarCompiler(EXAMPLE / "tokenizer.json", 4096, [END])
    outcomes: Counter[str] = Counter()
    for seed in range(pytestconfig.getoption("--schemas")):
        schema = random_schema(seed)
        outcome = _outcome(compiler, schema, seed)
        assert outcome in ("valid", "cut", "refused"), f"{outcome}: seed {seed}, {json.dumps(schema)}"
        outcomes[outcome] += 1
    compiler.close()
    print(dict(outcomes))  # with -s
    assert outcomes["valid"] > 2 * (outcomes["cut"] + outcomes["refused"])


def _outcome(compiler: GrammarCompiler, schema: dict[str, Any], seed: int) -> str:
    wanted = AnswerConstraint.of_schema(schema, "schema")
    assert schema == random_schema(seed)
    try:
        text = _said(compiler, wanted, seed)
    except UnfollowableError as error:
        told = str(located(error, wanted, lambda grammar: compiler.json_schema(grammar, field="schema")))
        placed = told.startswith(("schema: ", "schema.")) and ": change or leave " in told
        return "refused" if placed else told
    if text is None:
        return "cut"
    twice: list[str] = []

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        twice.extend(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        return dict(pairs)

    value = json.loads(text, object_pairs_hook=once)
    if twice and not has_maps(schema):
        return f"{twice} twice in {text}"
    errors = jsonschema_rs.Draft202012Validator(exact(schema), validate_formats=True).iter_errors(value)
    return next((f"{error.message} in {text}" for error in errors), "valid")


def _said(compiler: GrammarCompiler, wanted: AnswerConstraint, seed: int) -> str | None:
    """A random answer, which tends to end its parts; None if it did not end."""
    dice = np.random.default_rng(seed)
    grammar = compiler.json_schema(wanted.grammar, field="schema")
    answer = b""
    try:
        for _ in range(MOST):
            allowed = np.flatnonzero(grammar.allowed())
            token = int(END if END in allowed else dice.choice(allowed))
            ends = [one for one in allowed if compiler.token_bytes(int(one)) in (b'"', b"}", b"]")]
            if ends and dice.random() < 0.4:
                token = int(ends[0])
            if token == END:
                return answer.decode("utf-8")
            grammar.accept(token)
            answer += compiler.token_bytes(token)
    finally:
        grammar.close()
    return None
