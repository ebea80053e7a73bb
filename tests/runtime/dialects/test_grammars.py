"""Grammars of calls: a dialect reads back what its grammar lets a model write, and nothing else can be written."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest
from tests.conftest import EXAMPLE

from h2o_runtime.answers.dialects import DIALECTS
from h2o_runtime.answers.dialects.answer import Arguments, CallBegun
from h2o_runtime.answers.dialects.speech import Speech

llguidance = pytest.importorskip("llguidance")

END = 1
SPECIAL = 7  # stands for a mark that is a special token
FUNCTIONS: dict[str, Any] = {
    "get_time": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "zone": {"enum": ["summer", "winter"]},
            "hours": {"type": "integer"},
            "place": {"$ref": "#/$defs/Place"},
        },
        "required": ["city", "hours"],
        "additionalProperties": False,
        "$defs": {"Place": {"type": "array", "items": {"type": "number"}, "maxItems": 2}},
    },
    "ping": {"type": "object", "properties": {}, "additionalProperties": False},
}
CALLS = [
    ("get_time", {"city": "Oslo", "hours": 12}),
    ("get_time", {"city": "Ås <b>", "zone": "winter", "hours": -1, "place": [1.5, 2]}),
    ("ping", {}),
]


@cache
def tokenizer() -> Any:
    text = (EXAMPLE / "tokenizer.json").read_text(encoding="utf-8")
    return llguidance.LLTokenizer(text, eos_token=[END])


def follows(grammar: str, *parts: str | int) -> bool:
    """Whether a whole answer of these texts and tokens follows the grammar."""
    matcher = llguidance.LLMatcher(tokenizer(), llguidance.LLMatcher.grammar_from_lark(grammar), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens = [
        token
        for part in parts
        for token in ([part] if isinstance(part, int) else tokenizer().tokenize_str(part))
    ]
    if matcher.validate_tokens(tokens) < len(tokens):
        return False
    for token in tokens:
        matcher.consume_token(token)
    return bool(matcher.is_accepting())


def speech(name: str, thinks: bool = False, special: dict[str, int] | None = None) -> Speech:
    return Speech(DIALECTS[name](), thinks, special or {})


def read_back(speech: Speech, text: str) -> list[tuple[str, Any]]:
    reader = speech.reader(FUNCTIONS, "", forced=True)
    parts = reader.push(text) + reader.finish()
    assert not reader.cut
    names = [part.name for part in parts if isinstance(part, CallBegun)]
    arguments = [
        "".join(p.text for p in parts if isinstance(p, Arguments) and p.index == i) for i in range(len(names))
    ]
    return [(name, json.loads(text)) for name, text in zip(names, arguments, strict=True)]


@pytest.mark.parametrize("name", DIALECTS.names)
def test_calls_as_they_are_written_follow_the_grammar(name: str) -> None:
    spoken = speech(name)
    grammar = spoken.call_grammar(FUNCTIONS, "")
    for function, arguments in CALLS:
        written = spoken.dialect.written(function, arguments)
        assert follows(grammar, written)
        assert read_back(spoken, written) == [(function, arguments)]
    assert not follows(grammar, "Words.")
    assert not follows(grammar, spoken.dialect.written("unknown", {}))
    assert not follows(grammar, spoken.dialect.written("get_time", {"city": "Oslo"}))


@pytest.mark.parametrize("name", DIALECTS.names)
@pytest.mark.parametrize("seed", range(3))
def test_whatever_the_grammar_allows_is_read_back(name: str, seed: int) -> None:
    spoken, dice = speech(name), np.random.default_rng(seed)
    source = llguidance.LLMatcher.grammar_from_lark(spoken.call_grammar(FUNCTIONS, ""))
    matcher = llguidance.LLMatcher(tokenizer(), source, log_level=0)
    tokens: list[int] = []
    while len(tokens) < 300 and not (tokens and matcher.is_accepting()):
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        allowed = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
        assert allowed.size
        tokens.append(int(dice.choice(allowed)))
        matcher.consume_token(tokens[-1])
    text = tokenizer().decode_bytes(tokens).decode("utf-8", "replace")
    if matcher.is_accepting():
        ((function, arguments),) = read_back(spoken, text)
        assert set(arguments) <= set(FUNCTIONS[function]["properties"])
        assert set(arguments) >= set(FUNCTIONS[function].get("required", ()))


@pytest.mark.parametrize("name", [name for name in DIALECTS.names if DIALECTS[name].begins])
def test_a_mark_that_is_a_special_token_is_that_token(name: str) -> None:
    dialect = DIALECTS[name]()
    mark = next((mark for mark in dialect.marks if dialect.opening("ping").startswith(mark)), None)
    if mark is None:
        return
    spoken = speech(name, special={mark: SPECIAL})
    rest = dialect.written("ping", {}).removeprefix(mark)
    grammar = spoken.call_grammar(FUNCTIONS, "")
    assert follows(grammar, SPECIAL, rest)
    assert not follows(grammar, mark + rest)


def test_thoughts_may_come_before_a_call_that_is_required() -> None:
    call = DIALECTS["hermes"]().written("ping", {})
    spoken = speech("hermes", thinks=True)
    grammar = spoken.call_grammar(FUNCTIONS, "")
    assert follows(grammar, call)
    assert follows(grammar, f"<think>\nPing?\n</think>\n\n{call}")
    assert not follows(grammar, f"Ping?\n</think>\n\n{call}")
    begun = spoken.call_grammar(FUNCTIONS, "<|im_start|>assistant\n<think>\n")
    assert follows(begun, f"Ping?\n</think>\n\n{call}")
    assert not follows(begun, call)
    ended = spoken.call_grammar(FUNCTIONS, "<think>\n\n</think>\n\n")
    assert not follows(ended, f"<think>\nPing?\n</think>\n\n{call}")


@pytest.mark.parametrize("special", [{}, {"<tool_call>": SPECIAL}])
def test_strict_functions_are_followed_only_in_calls(special: dict[str, int]) -> None:
    grammar = speech("hermes", special=special).strict_grammar(FUNCTIONS, "")
    assert grammar is not None
    call = DIALECTS["hermes"]().written("ping", {})
    parts = [SPECIAL, call.removeprefix("<tool_call>")] if special else [call]
    assert follows(grammar, "Some words.")
    assert follows(grammar, "I look.\n", *parts)
    assert follows(grammar, *parts, "\n", *parts, "Words.")
    broken = [one.replace("{}", '{"x": 1}') if isinstance(one, str) else one for one in parts]
    assert not follows(grammar, "I look.\n", *broken)


def test_where_nothing_marks_a_call_alone_strict_functions_are_not_followed() -> None:
    for name in ("json", "glm4", "gemma", "harmony"):
        assert speech(name).strict_grammar(FUNCTIONS, "") is None


def test_a_channel_of_thoughts_may_come_before_a_call_that_is_required() -> None:
    spoken = speech("harmony", thinks=True)
    call = spoken.dialect.written("ping", {})
    grammar = spoken.call_grammar(FUNCTIONS, "<|start|>assistant")
    assert follows(grammar, call)
    assert follows(grammar, f"<|channel|>analysis<|message|>Ping?<|end|><|start|>assistant{call}")
    assert not follows(grammar, "<|channel|>final<|message|>Ping?")


@pytest.mark.parametrize("name", ["hermes", "kimi", "deepseek", "mistral", "qwen-coder", "lfm"])
def test_strict_functions_are_read_back(name: str) -> None:
    spoken = speech(name)
    grammar = spoken.strict_grammar(FUNCTIONS, "")
    assert grammar is not None
    answer = f"I look.\n{spoken.dialect.written(*CALLS[0])}"
    assert follows(grammar, answer)
    assert read_back(spoken, answer) == CALLS[:1]
    assert not follows(grammar, f"I look.\n{spoken.dialect.written('get_time', {'city': 'Oslo'})}")
