"""Layers with a sliding window at run time: their cache, and the other layers' policies."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.bundles import export, random_ids, relative_error
from tests.family_models import VOCAB, WINDOWS, save
from tests.runtime import layer_cases
from tests.runtime.layer_cases import EACH_POLICY, FULL, H2O, NEXT, POLICIES, PROMPT

from h2o_runtime import Generator
from h2o_runtime.answers.events import PromptPieceRead
from h2o_runtime.answers.request import Prompt, Request
from h2o_runtime.caches import Cache, Contiguous, Evicting, Offload, Paged
from h2o_runtime.caches.contiguous import ContiguousStore
from h2o_runtime.caches.sliding import AT_ONCE, SlidingRows, spare_rows
from h2o_runtime.errors import Cancelled, ConfigError
from h2o_runtime.execution.footprint import cache_bytes
from h2o_runtime.execution.reading import Watch
from h2o_runtime.layer_spec import LayerSpec
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.policies.decode.quest import Quest
from h2o_runtime.policies.decode.subquadratic import SubquadraticDecode
from h2o_runtime.policies.prefill import PrefillPolicy
from h2o_runtime.sessions.saved import SavedSession, save_session

pytestmark = pytest.mark.usefixtures("models_stay_loaded")

WINDOW, CONTEXT = 100, 600
load = partial(layer_cases.load, context=CONTEXT)
DTYPES = ("model", "float16", "int8")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Layers 0 and 3 see everything, 1 and 2 a window."""
    folder = tmp_path_factory.mktemp("windows")
    return export(save(folder / "checkpoint", "qwen3", WINDOWS), folder / "bundle")


def conversation(generator: Generator, policy: PrefillPolicy[Any]) -> Iterator[np.ndarray]:
    """Logits of a prompt, answers, a next turn, a few tokens back, far back, a short prompt, and answers.

    An approximation depends on what is reused, and rows that slide do not go back as far: then only forward.
    """
    yield generator.prefill(PROMPT, policy)
    for token in NEXT[:20]:
        yield generator.decode(token)
    yield generator.prefill([*PROMPT, *NEXT], policy)
    if policy.exact:
        yield generator.prefill([*PROMPT, *NEXT[:30], 7, 8, 9], policy)
        yield generator.prefill([*PROMPT[:150], *NEXT], policy)
    yield generator.prefill(PROMPT[:37], policy, reuse=False)
    for token in range(2, 200):
        logits = generator.decode(token)
    yield logits


agree = partial(layer_cases.agree, conversation)


@pytest.mark.parametrize("name", EACH_POLICY)
def test_rows_that_slide_are_those_of_a_whole_cache(bundle: Path, name: str) -> None:
    with load(bundle) as sliding, load(bundle, Paged()) as whole:
        assert sliding.session.store.at_once == AT_ONCE
        agree(sliding, whole, POLICIES[name], 1e-5)


@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_shorter_rows_slide_too(bundle: Path, dtype: Any) -> None:
    with load(bundle, Contiguous(rows=dtype)) as sliding, load(bundle, Paged(rows=dtype)) as whole:
        # A cache that rounds turns the smallest difference into a step of its own.
        agree(sliding, whole, FULL, 1e-2)


def test_rows_in_a_file_are_whole(bundle: Path, tmp_path: Path) -> None:
    with load(bundle, Offload(file=str(tmp_path / "rows"))) as filed, load(bundle, Paged()) as whole:
        agree(filed, whole, FULL, 1e-5)


def test_a_context_no_longer_than_the_room_is_one_graph(bundle: Path) -> None:
    """Then rows stay where they are, and a step with windows is one call."""
    with (
        Generator.load(bundle, context=120, threads=1, dense_form="native") as generator,
        load(bundle) as other,
    ):
        for one in (generator, other):
            one.prefill(PROMPT[:50], FULL)
        for token in PROMPT[50:119]:
            ours, theirs = generator.decode(token), other.decode(token)
        assert generator.loaded.forward.graph(generator.session) is not None
        assert relative_error(ours, theirs) < 1e-5


@pytest.mark.parametrize("attention", ["native", "functions"])
def test_providers_agree(bundle: Path, attention: Any) -> None:
    with load(bundle, attention=attention) as generator, load(bundle, Paged()) as other:
        for ids in (PROMPT, [*PROMPT, *NEXT]):
            ours, theirs = (one.prefill(ids, H2O) for one in (generator, other))
            assert relative_error(ours, theirs) < 1e-4


@pytest.mark.parametrize("decoding", [Quest(budget=64, page=8), SubquadraticDecode(window=16)])
def test_decode_policies_are_for_the_other_layers(bundle: Path, decoding: Any) -> None:
    """Their states have no place for layers with a window, whose attention they do not change."""
    with load(bundle, decoding=decoding) as sliding, load(bundle, Paged(), decoding=decoding) as whole:
        agree(sliding, whole, FULL, 1e-5)
    with load(bundle, decoding=Quest(budget=CONTEXT, page=8)) as generator, load(bundle) as exact:
        for one in (generator, exact):
            one.prefill(PROMPT, FULL)
        assert relative_error(generator.decode(5), exact.decode(5)) < 1e-5


def test_how_far_a_text_can_go_back(bundle: Path) -> None:
    spare = spare_rows(WINDOW)
    with load(bundle) as generator:
        generator.prefill(PROMPT, FULL)
        near = [*PROMPT[: 300 - spare], 3, 4]
        logits = generator.prefill(near, FULL).copy()
        assert generator.reused == 300 - spare
        assert relative_error(logits, generator.prefill(near, FULL, reuse=False)) < 1e-5
        generator.prefill(PROMPT, FULL, reuse=False)
        generator.prefill([*PROMPT[: 300 - spare - 1], 3, 4], FULL)
        assert generator.reused == 0  # what its window sees is gone
        generator.prefill(PROMPT[:80], FULL, reuse=False)
        generator.prefill([*PROMPT[:5], 3], FULL)
        assert generator.reused == 5  # all is there yet


@pytest.mark.parametrize("after", [Contiguous(), Paged()], ids=["contiguous", "paged"])
@pytest.mark.parametrize("before", [Contiguous(), Paged()], ids=["contiguous", "paged"])
def test_saved_sessions_go_on_in_any_cache(bundle: Path, tmp_path: Path, before: Cache, after: Cache) -> None:
    path = tmp_path / "session.npz"
    with load(bundle, before) as generator, load(bundle, after) as other:
        generator.prefill(PROMPT, H2O)
        generator.decode(7)
        save_session(generator.session, path)
        SavedSession.open(path).load_into(other.session, H2O)
        ids = [*PROMPT, 7, *NEXT]
        assert relative_error(other.prefill(ids, H2O), generator.prefill(ids, H2O)) < 1e-5
        assert other.reused == 301
        ids = [*PROMPT[:64], *NEXT]
        assert relative_error(other.prefill(ids, H2O), generator.prefill(ids, H2O, reuse=False)) < 1e-5
    if isinstance(before, Contiguous):
        with np.load(path) as file:
            assert file["k000"].shape[0] == 301
            assert file["k001"].shape[0] < WINDOW + 2 * spare_rows(WINDOW)


@pytest.mark.parametrize("cache", [Contiguous(), Contiguous(rows="int8"), Paged()], ids=str)
def test_sessions_take_turns(bundle: Path, cache: Cache) -> None:
    other = random_ids(280, 5, VOCAB).tolist()
    with load(bundle, cache, pool_bytes=1 << 26) as generator, load(bundle, cache) as fresh:
        for ids in (PROMPT, other, [*PROMPT, *NEXT], [*other, *NEXT]):
            ours = generator.prefill(ids, FULL).copy()
            tolerance = 1e-5 if "int8" not in str(cache) else 2e-2
            assert relative_error(ours, fresh.prefill(ids, FULL, reuse=False)) < tolerance
        assert generator.reused == 280


@pytest.mark.parametrize("when", [3, 9, 14])
def test_an_interrupted_prompt_leaves_nothing_wrong(bundle: Path, when: int) -> None:
    with load(bundle) as generator, load(bundle) as fresh:
        generator.prefill(PROMPT[:200], FULL)
        asked = iter(range(1000))
        with pytest.raises(Cancelled):
            generator.prefill(PROMPT, FULL, Watch(cancelled=lambda: next(asked) >= when))
        for ids in (PROMPT[:210], PROMPT):
            assert relative_error(generator.prefill(ids, FULL), fresh.prefill(ids, FULL, reuse=False)) < 1e-5


# --- What it takes ----------------------------------------------------------------------------------------


def test_a_prompt_is_not_read_in_pieces(bundle: Path) -> None:
    with load(bundle) as generator:
        events = list(generator.run(Request(Prompt(tuple(PROMPT)), 1, FULL), prompt_piece=64))
        assert not any(isinstance(event, PromptPieceRead) for event in events)


@pytest.mark.parametrize("cache", [Contiguous(), Paged()], ids=["contiguous", "paged"])
def test_a_prompt_goes_on_from_what_another_live_session_has_read(bundle: Path, cache: Cache) -> None:
    prompt = [*PROMPT, *NEXT]
    with load(bundle, cache) as alone, load(bundle, cache, slots=2) as first:
        (second,) = first.others
        first.prefill(PROMPT, FULL)
        assert relative_error(second.prefill(prompt, FULL), alone.prefill(prompt, FULL)) < 1e-5
        assert second.reused == len(PROMPT)
        for token in range(2, 60):  # the other one's rows move, and these stay
            first.decode(token)
        assert relative_error(second.decode(7), alone.decode(7)) < 1e-5


def model_of(layers: int, wide: int, window: int) -> ModelSpec:
    """Layers with a window, of which every `wide`-th has none."""
    sizes = {"query_heads": 4, "kv_heads": 1, "head_size": 256, "value_size": 256, "query_size": 256}
    sizes |= {"out_size": 256, "rotary_size": 256}
    specs = [
        LayerSpec(kind="grouped-query" if own == 0 else "window", scale=0.1, window=own, **sizes)
        for own in (0 if wide and (layer + 1) % wide == 0 else window for layer in range(layers))
    ]
    return ModelSpec(
        family="gemma3",
        hidden_size=640,
        layers=layers,
        query_heads=4,
        kv_heads=1,
        head_size=256,
        intermediate_size=2048,
        vocab_size=1000,
        max_position_embeddings=32768,
        parameters=1,
        tied=True,
        scale=0.1,
        dtype="float32",
        layer_specs=tuple(specs),
    )


@pytest.mark.parametrize(("layers", "wide", "window"), [(18, 6, 512), (32, 0, 4096), (32, 4, 4096)])
def test_memory_does_not_grow_with_the_text(layers: int, wide: int, window: int) -> None:
    model = model_of(layers, wide, window)
    whole, row, tokens = model.under_policies.layers, 2 * 256 * 4, 32768
    needed = (whole * tokens + (layers - whole) * window) * row
    taken = Contiguous().store_bytes(model, tokens)
    assert needed <= taken <= 1.05 * (needed + AT_ONCE * row) + window * row
    if wide:  # elsewhere the room for a part of a prompt, which all layers share, is more than that
        assert taken <= 1.05 * needed
    assert cache_bytes(model, tokens)["paged float32"] > layers * tokens * row


def test_the_footprint_is_what_is_reserved(bundle: Path) -> None:
    for cache in (Contiguous(), Contiguous(rows="int8")):
        with load(bundle, cache) as generator:
            store = generator.session.store
            assert isinstance(store, ContiguousStore)
            assert store.nbytes == cache.store_bytes(generator.model, CONTEXT)
            assert [type(layer) for layer in store._open].count(SlidingRows) == 2


# --- What is refused --------------------------------------------------------------------------------------


def test_a_cache_that_evicts_is_refused(bundle: Path) -> None:
    with pytest.raises(ConfigError, match="a sliding window counts them: use another cache"):
        load(bundle, Evicting(tokens=128))
