"""The table of hybrids beside llama.cpp: its ratios are those within rounds, and a missing peer is a sentence."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from bench.hybrids.contestants import LlamaCpp, Turn, Unavailable
from bench.hybrids.run import Row, summed, table
from bench.hybrids.shapes import SHAPES

from tests.reference.checkpoints import TOKENIZER_VOCAB

TURNS = {
    "h2o": [Turn(1.0, 0.010, 2.0), Turn(2.0, 0.020, 4.0), Turn(4.0, 0.010, 8.0)],
    "llama.cpp": [Turn(3.0, 0.010, 6.0), Turn(4.0, 0.010, 8.0), Turn(16.0, 0.020, 9.0)],
}


def test_ratios_are_within_rounds() -> None:
    assert list(summed(TURNS, "llama.cpp", "prefill")) == [4.0, 3.0, 16.0, 3.0]
    assert list(summed(TURNS, "llama.cpp", "decode")) == [0.01, 0.01, 0.02, 1.0]


def test_the_table_has_a_line_a_length_and_an_empty_cell_where_nobody_ran() -> None:
    rows = [Row("A", 8, 1, "prefill", 4096, "h2o", 3, *summed(TURNS, "h2o", "prefill"))]
    rows += [Row("A", 8, 1, "prefill", 4096, "llama.cpp", 3, *summed(TURNS, "llama.cpp", "prefill"))]
    rows += [Row("A", 8, 1, "decode", 4096, "h2o", 3, *summed(TURNS, "h2o", "decode"))]
    head, rule, line = table(rows)
    assert head.count("|") == rule.count("|") == line.count("|")
    assert line == "| A | 1 of 8 | 4,096 | 2.00 |  | 4.00 (3.00) | 10.0 |  |"


def test_a_python_without_xllamacpp_is_a_sentence() -> None:
    with pytest.raises(Unavailable, match="No module named 'xllamacpp'"):
        LlamaCpp(Path(sys.executable), Path("none.gguf"), 64, 1)
    with pytest.raises(Unavailable, match="No such file"):
        LlamaCpp(Path("/nowhere/python"), Path("none.gguf"), 64, 1)


def test_shapes_have_the_example_s_vocabulary() -> None:
    assert {settings["vocab_size"] for _, settings in SHAPES.values()} == {TOKENIZER_VOCAB}
