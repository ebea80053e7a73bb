"""Tokens that a grammar forces are read ahead: each is alone in its mask, and answers are those of plain decode."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import llguidance
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from h2o_runtime import Generator, Sampling
from h2o_runtime.answers.dialects.lark import COMPACT
from h2o_runtime.answers.drafter import Drafter
from h2o_runtime.answers.events import Finished, TokenGenerated
from h2o_runtime.answers.lookup import PromptLookup
from h2o_runtime.caches.paged import Paged
from h2o_runtime.policies.prefill import Full
from h2o_runtime.text import Tokenizer
from h2o_server.answers.grammar import Grammar, GrammarCompiler
from h2o_server.answers.grammar_process import MOST_FORCED

FULL = Full()
PROMPT = list(range(60, 90)) * 2

WORDS = st.text("abcdefgh_ éß東", min_size=1, max_size=24)
LEAVES = st.one_of(
    st.sampled_from(
        [{"type": "boolean"}, {"type": "null"}, {"type": "integer", "minimum": 0, "maximum": 99}]
    ),
    st.just({"type": "string", "maxLength": 6}),
    WORDS.map(lambda word: {"const": word}),
    st.lists(WORDS, min_size=1, max_size=3, unique=True).map(lambda words: {"enum": words}),
)


def inside(schemas: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Objects with all their members, and short arrays."""
    members = st.dictionaries(WORDS, schemas, min_size=1, max_size=3)
    return st.one_of(
        members.map(
            lambda named: {
                "type": "object",
                "properties": named,
                "required": list(named),
                "additionalProperties": False,
            }
        ),
        schemas.map(lambda items: {"type": "array", "items": items, "minItems": 1, "maxItems": 2}),
    )


SCHEMAS = st.recursive(LEAVES, inside, max_leaves=4)
LONG_KEYS = {
    "type": "object",
    "properties": {
        "the_name_of_the_oldest_lighthouse": {"type": "string", "maxLength": 5},
        "number_of_whales_near_the_harbour": {"type": "integer", "minimum": 0, "maximum": 9},
        "weather_in_the_last_week_of_the_year": {"enum": ["rain", "snow"]},
    },
    "required": [
        "the_name_of_the_oldest_lighthouse",
        "number_of_whales_near_the_harbour",
        "weather_in_the_last_week_of_the_year",
    ],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def generator(tiny_bundle: Path) -> Iterator[Generator]:
    options: dict[str, Any] = {"context": 400, "threads": 1, "device": "cpu", "dense_form": "native"}
    with Generator.load(tiny_bundle, cache=Paged(), **options) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def ends(tiny_bundle: Path) -> list[int]:
    return sorted(Tokenizer.load(tiny_bundle).eos_ids)


@pytest.fixture(scope="module")
def compiler(tiny_bundle: Path, generator: Generator, ends: list[int]) -> Iterator[GrammarCompiler]:
    with closing(GrammarCompiler(tiny_bundle / "tokenizer.json", generator.model.vocab_size, ends)) as made:
        yield made


@pytest.fixture(scope="module")
def matcher(tiny_bundle: Path, generator: Generator, ends: list[int]) -> Callable[[Any], Any]:
    """llguidance itself, which is asked for every mask."""
    text = (tiny_bundle / "tokenizer.json").read_text()
    tokenizer = llguidance.LLTokenizer(text, n_vocab=generator.model.vocab_size, eos_token=ends)
    make = llguidance.LLMatcher

    def made(schema: Any) -> Any:
        return make(tokenizer, make.grammar_from_json_schema(json.dumps(schema), overrides=COMPACT))

    return made


def mask_of(matcher: Any, vocab: int) -> NDArray[np.bool_]:
    bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), count=vocab, bitorder="little")
    return bits.view(np.bool_)


@settings(max_examples=10, deadline=None)
@given(schema=SCHEMAS, seed=st.integers(0, 1000))
def test_masks_are_llguidances_and_forced_tokens_stand_alone_in_them(
    compiler: GrammarCompiler, matcher: Callable[[Any], Any], ends: list[int], schema: Any, seed: int
) -> None:
    dice, plain = np.random.default_rng(seed), matcher(schema)
    with closing(compiler.json_schema(schema, field="schema")) as grammar:
        for _ in range(80):
            expected = mask_of(plain, len(grammar.allowed()))
            forced = list(grammar.forced())
            np.testing.assert_array_equal(grammar.allowed(), expected)
            if forced:
                assert expected.sum() == 1
                assert expected[forced[0]]
                assert forced[0] not in ends
            token = int(dice.choice(np.flatnonzero(expected)))
            if token in ends:
                return
            grammar.accept(token)
            plain.consume_token(token)
            if len(forced) > 1:
                assert list(grammar.forced()) == forced[1:]


@settings(max_examples=10, deadline=None)
@given(schema=SCHEMAS, seed=st.integers(0, 1000), data=st.data())
def test_a_draft_fits_up_to_the_first_token_that_llguidances_masks_forbid(
    compiler: GrammarCompiler,
    matcher: Callable[[Any], Any],
    ends: list[int],
    schema: Any,
    seed: int,
    data: st.DataObject,
) -> None:
    dice, before = np.random.default_rng(seed), data.draw(st.integers(0, 12))
    answer, walk = [], matcher(schema)
    with closing(compiler.json_schema(schema, field="schema")) as grammar:
        vocab = len(grammar.allowed())
        for _ in range(before + MOST_FORCED):
            token = int(dice.choice(np.flatnonzero(mask_of(walk, vocab))))
            if token in ends:
                break
            answer.append(token)
            walk.consume_token(token)
        for token in answer[:before]:
            grammar.accept(token)
        draft = answer[before:]
        assert grammar.fitting(draft) == len(draft)
        if draft:
            wrong, place = matcher(schema), data.draw(st.integers(0, len(draft) - 1))
            for token in answer[: before + place]:
                wrong.consume_token(token)
            forbidden = np.flatnonzero(~mask_of(wrong, vocab))
            draft[place] = int(dice.choice(forbidden))
            assert grammar.fitting(draft) == place
        for token in answer[before:]:
            grammar.accept(token)


def answered(generator: Generator, grammar: Grammar, **options: Any) -> tuple[Any, ...]:
    """Tokens with log-probabilities, why the answer ended, the session's tokens, logits and rows."""
    generator.reset()
    tokens, reason = [], ""
    with closing(grammar):
        for event in generator.generate(PROMPT, policy=FULL, reuse=False, constraint=grammar, **options):
            if isinstance(event, TokenGenerated):
                tokens.append(event.sampled)
            elif isinstance(event, Finished):
                reason = event.reason
    session, caches = generator.session, generator.session.store.fixed_rows()
    assert session.logits is not None
    assert caches is not None
    rows = [array.tobytes() for kv in caches for array in kv.stored_rows(session.length).values()]
    pages = session.store.report()["pages_in_use"]
    return tokens, reason, session.known.tolist(), session.logits.tobytes(), rows, pages


@settings(max_examples=8, deadline=None)
@given(
    schema=SCHEMAS,
    sampling=st.sampled_from(
        [
            Sampling(logprobs=2),
            Sampling(temperature=1.0, top_k=40, seed=3),
            Sampling(
                temperature=0.7, seed=5, repetition_penalty=1.3, frequency_penalty=0.2, repeat_last_n=16
            ),
        ]
    ),
    most=st.integers(1, 60),
)
def test_answers_are_those_of_plain_decode(
    generator: Generator,
    compiler: GrammarCompiler,
    ends: list[int],
    schema: Any,
    sampling: Sampling,
    most: int,
) -> None:
    options = {"max_new_tokens": most, "sampling": sampling, "stop_tokens": ends}
    plain = answered(generator, compiler.json_schema(schema, field="schema"), speculate="off", **options)
    assert generator.drafts.drafted == 0
    ahead = answered(generator, compiler.json_schema(schema, field="schema"), speculate="lookup", **options)
    assert ahead == plain


def test_long_keys_take_few_steps(
    generator: Generator, compiler: GrammarCompiler, ends: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []

    def counted(tokens: Any, step: Any = generator.step) -> Any:
        steps.append(len(tokens))
        return step(tokens)

    monkeypatch.setattr(generator, "step", counted)
    options = {"max_new_tokens": 200, "stop_tokens": ends}
    plain = answered(generator, compiler.json_schema(LONG_KEYS, field="schema"), speculate="off", **options)
    assert steps == [1] * len(plain[0])
    steps.clear()
    assert answered(generator, compiler.json_schema(LONG_KEYS, field="schema"), **options) == plain
    assert max(steps) > 8
    assert len(steps) < len(plain[0]) / 2
    assert generator.drafts.accepted >= len(plain[0]) - len(steps)


class Forces:
    """A constraint that says which tokens must come, and which one may not come after them."""

    def __init__(self, tokens: Sequence[int], forbidden: int) -> None:
        self.tokens, self.forbidden = tokens, forbidden

    def forced(self) -> Sequence[int]:
        return self.tokens

    def fitting(self, draft: Sequence[int]) -> int:
        good = [token != self.forbidden for token in draft]
        good[: len(self.tokens)] = [a == b for a, b in zip(draft, self.tokens, strict=False)]
        return (*good, False).index(False)


@pytest.mark.parametrize(
    ("forced", "forbidden", "most", "draft"),
    [
        ((), 0, 7, [4, 5, 6, 1, 2, 3, 4]),
        ((), 1, 7, [4, 5, 6]),
        ((), 4, 7, []),
        ((4, 5), 0, 7, [4, 5, 6, 1, 2, 3, 4]),  # the text agrees, and goes further
        ((4, 5), 2, 7, [4, 5, 6, 1]),
        ((4, 5), 6, 7, [4, 5]),
        ((4, 9), 0, 7, [4, 9]),
        ((4, 5), 0, 1, [4]),
        ((9, 9, 9), 0, 2, [9, 9]),
        ((4, 5), 0, 0, []),
    ],
)
def test_a_draft_is_what_the_text_suggests_where_the_grammar_agrees(
    forced: tuple[int, ...], forbidden: int, most: int, draft: list[int]
) -> None:
    constraint: Any = Forces(forced, forbidden)
    drafter = Drafter([PromptLookup([1, 2, 3, 4, 5, 6] * 4)], constraint)
    for token in [1, 2, 3, 4, 5, 6] * 4 + [1, 2, 3]:
        drafter.append(token)
    assert drafter.draft(most) == draft
