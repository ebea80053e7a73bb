"""A decode step of several rows: a row's logits are bit for bit the same alone, beside others, in any place."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests import bundles
from tests.bundles import random_ids

from h2o_runtime import Generator
from h2o_runtime.caches.cache import Cache
from h2o_runtime.caches.contiguous import Contiguous
from h2o_runtime.caches.evicting import Evicting
from h2o_runtime.caches.paged import Paged
from h2o_runtime.execution.step_rows import StepRow
from h2o_runtime.limits import MOST_STEP_ROWS
from h2o_runtime.policies.decode.quest import Quest
from h2o_runtime.policies.prefill import Full
from h2o_runtime.sessions.session import Session

CONTEXT, SESSIONS = 200, 4
FULL = Full()
CACHES: dict[str, Cache] = {
    "contiguous": Contiguous(),
    "paged": Paged(),
    "paged-float16": Paged(rows="float16"),
    "int8": Contiguous(rows="int8"),
}
MODELS = {"llama-g2-d64-llama3": {"weights": "int8"}, "qwen2-g4-d32": {}}


def load(shared_folder: Path, shape: str, **options: Any) -> Generator:
    more: dict[str, Any] = MODELS[shape]
    suffix = "".join(f"-{value}" for value in more.values())
    folder = bundles.named(shared_folder, shape, suffix, **more)[1]
    return Generator.load(folder, context=CONTEXT, device="cpu", dense_form="native", **options)


class Alone:
    """Logits of tokens that were read one by one, each alone: what any other way must give."""

    def __init__(self, generator: Generator) -> None:
        self.generator = generator
        self._known: dict[tuple[int, ...], NDArray[np.float32]] = {}

    def logits(self, prompt: list[int], tokens: list[int]) -> NDArray[np.float32]:
        """After the last of `tokens` behind a prompt."""
        key = (len(prompt), zlib.crc32(np.array(prompt).tobytes()), *tokens)
        if key not in self._known:
            self.generator.reset()
            self.generator.prefill(prompt, FULL)
            for i, token in enumerate(tokens):
                self._known[(*key[:2], *tokens[: i + 1])] = self.generator.decode(token).copy()
        return self._known[key]


LOADED = [
    *(("llama-g2-d64-llama3", cache) for cache in CACHES if cache != "paged"),
    ("qwen2-g4-d32", "paged"),
]


@pytest.fixture(scope="module", params=LOADED, ids="-".join)
def loaded(request: pytest.FixtureRequest, shared_folder: Path) -> Iterator[Generator]:
    model, cache = request.param
    with load(shared_folder, model, threads=2, cache=CACHES[cache]) as generator:
        yield generator


PROMPTS = [random_ids(length, seed).tolist() for seed, length in enumerate((5, 31, 64, 130))]
STEPS = st.lists(  # rows of each session in a step, and how many of them stay
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=4),
    min_size=1,
    max_size=4,
)


@settings(max_examples=6, deadline=None)
@given(steps=STEPS)
def test_a_rows_logits_do_not_depend_on_the_others(
    loaded: Generator, steps: list[list[tuple[int, int, int]]]
) -> None:
    """Rows of several sessions in one step, several of a session among them, some of which are taken back."""
    forward, alone = loaded.loaded.forward, Alone(loaded)
    generators = [Generator(loaded.loaded) for _ in range(SESSIONS)]
    for generator, prompt in zip(generators, PROMPTS, strict=True):
        generator.prefill(prompt, FULL)
    texts: list[list[int]] = [[] for _ in generators]
    draw = np.random.default_rng(0)
    for step in steps:
        rows: list[StepRow] = []
        behind: list[
            tuple[int, list[int]]
        ] = []  # of each row: its session, and what was read behind the prompt
        stay: dict[int, list[int]] = {}
        for which, count, kept in step:
            tokens = draw.integers(2, 250, count).tolist()[: MOST_STEP_ROWS - len(rows)]
            if which in stay or not tokens:
                continue
            stay[which] = tokens[:kept]
            rows += [StepRow(token, generators[which].session) for token in tokens]
            behind += [(which, [*texts[which], *tokens[: i + 1]]) for i in range(len(tokens))]
        if not rows:
            continue
        got = forward.decode_rows(rows).copy()
        for which, tokens in stay.items():
            generators[which].session.decoded(tokens)
            texts[which] += tokens
        for row, (which, tokens) in zip(got, behind, strict=True):
            np.testing.assert_array_equal(row, alone.logits(PROMPTS[which], tokens))
    for generator, prompt, text in zip(generators, PROMPTS, texts, strict=True):
        assert generator.session.known.tolist() == prompt + text


def places(session: Session) -> list[dict[str, NDArray[Any]]]:
    caches = session.store.fixed_rows()
    assert caches is not None
    return [{name: rows.copy() for name, rows in kv.stored_rows(session.length).items()} for kv in caches]


def test_rows_that_do_not_stay_leave_no_trace(loaded: Generator) -> None:
    loaded.reset()
    loaded.prefill(PROMPTS[2], FULL)
    before, pages = places(loaded.session), loaded.session.store.report().get("pages_in_use")
    loaded.loaded.forward.decode_rows([StepRow(token, loaded.session) for token in range(5, 20)])
    loaded.session.decoded([])
    assert loaded.session.known.tolist() == PROMPTS[2]
    assert loaded.session.store.report().get("pages_in_use") == pages
    for ours, theirs in zip(places(loaded.session), before, strict=True):
        for name in theirs:
            np.testing.assert_array_equal(ours[name], theirs[name])


@pytest.mark.parametrize(
    "options",
    [{"decoding": Quest(budget=16)}, {"cache": Evicting(tokens=128)}, {"dense_form": "exact"}],
    ids=["quest", "evicting", "exact"],
)
def test_where_there_is_no_graph_rows_of_sessions_go_one_by_one(
    shared_folder: Path, options: dict[str, Any]
) -> None:
    folder = bundles.named(shared_folder, "qwen2-g4-d32")[1]
    with Generator.load(
        folder, **{"context": CONTEXT, "threads": 1, "device": "cpu", **options}
    ) as generator:
        other, expected = Generator(generator.loaded), []
        for one, prompt in ((generator, PROMPTS[1]), (other, PROMPTS[2])):
            one.prefill(prompt, FULL)
            expected.append(one.decode(7).copy())
            one.reset()
            one.prefill(prompt, FULL)
        forward = generator.loaded.forward
        assert forward.one_row_because(generator.session)
        got = forward.decode_rows([StepRow(7, generator.session), StepRow(7, other.session)])
        np.testing.assert_array_equal(got, np.array(expected))
