"""The prompts of bench/eval/lookups.py ask for what their tables have."""

from __future__ import annotations

import pytest
from bench.eval.lookups import prompt
from tests.conftest import EXAMPLE

from h2o_runtime.text import Tokenizer


@pytest.mark.parametrize("table", ["codes", "words"])
def test_every_repeated_value_is_in_the_table_behind_its_name(table: str) -> None:
    tokenizer = Tokenizer.load(EXAMPLE)
    ids, asked = prompt(tokenizer, table, 5, 4, 3, seed=1)
    begin, repeated = tokenizer.decode(ids.tolist()).split("asked for in another order.\n")
    lines = [line for line in repeated.splitlines()[:3] if line in begin.splitlines()]
    assert len(set(lines)) == 3
    values = tokenizer.decode(ids[asked].tolist()).split()
    assert "".join(values) == "".join(line.partition(": ")[2] for line in lines)


def test_words_have_one_token() -> None:
    with pytest.raises(SystemExit, match="words of one token, of "):
        prompt(Tokenizer.load(EXAMPLE), "words", 0, 9999, 1, seed=1)
