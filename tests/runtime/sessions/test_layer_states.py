"""Layers with a state in place of rows: where a text can go on, in every cache and under every policy."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.bundles import export, random_ids, relative_error
from tests.family_models import VOCAB, save
from tests.prefill import altered
from tests.runtime import layer_cases
from tests.runtime.layer_cases import FULL, H2O, NEXT, POLICIES, PROMPT

from h2o_runtime import Generator, Sampling
from h2o_runtime.answers.events import PromptPieceRead, TokenGenerated
from h2o_runtime.answers.request import Prompt, Request
from h2o_runtime.caches import Cache, Contiguous, Evicting, Offload, Paged
from h2o_runtime.errors import BackendError, Cancelled, ConfigError, InputError
from h2o_runtime.execution.footprint import cache_bytes, footprint
from h2o_runtime.execution.reading import Watch
from h2o_runtime.execution.step_rows import StepRow
from h2o_runtime.layers.activations import activation_bytes
from h2o_runtime.names import Speculation
from h2o_runtime.policies.decode.quest import Quest
from h2o_runtime.sessions.layer_states import (
    AHEAD,
    BLOCK,
    COPIES,
    States,
    StoreWithStates,
    rows_ahead,
    session_bytes,
    states_bytes,
)
from h2o_runtime.sessions.saved import SavedSession, save_session
from h2o_runtime.sessions.session import Session

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("models_stay_loaded")]

CONTEXT = 1400
load = partial(layer_cases.load, context=CONTEXT)
LONG = random_ids(1200, 4, VOCAB).tolist()
CACHES = {"contiguous": Contiguous(), "paged": Paged(), "int8": Contiguous(rows="int8")}


@pytest.fixture(
    scope="module", params=["qwen3_5", pytest.param("granitemoehybrid", marks=pytest.mark.nightly)]
)
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three layers with a state to one that sees everything."""
    folder = tmp_path_factory.mktemp("states")
    return export(save(folder / "checkpoint", request.param), folder / "bundle")


@pytest.mark.parametrize(
    ("name", "cache"),
    [
        *(pytest.param("full", cache, id=f"full-{name}") for name, cache in CACHES.items()),
        *(pytest.param(name, Contiguous(), id=name) for name in ("h2o", "subquadratic")),
    ],
)
def test_a_conversation_goes_on(bundle: Path, name: str, cache: Cache) -> None:
    """Policies are for the other layers alone; an exact one computes what a fresh run does."""
    policy, share = POLICIES[name], 2e-2 if cache == CACHES["int8"] else 1e-5
    with load(bundle, cache) as generator, load(bundle, cache) as fresh:
        generator.prefill(PROMPT, policy)
        for token in NEXT[:5]:
            logits = generator.decode(token)
        if policy.exact:
            ids = [*PROMPT, *NEXT[:5]]
            assert relative_error(logits, fresh.prefill(ids, policy, reuse=False)) < share
        ids = [*PROMPT, *NEXT]
        logits = generator.prefill(ids, policy)
        if policy.exact:
            assert generator.reused == len(PROMPT) + 5
            assert relative_error(logits, fresh.prefill(ids, policy, reuse=False)) < share
        assert np.isfinite(generator.decode(3)).all()


def test_where_a_text_goes_on(bundle: Path) -> None:
    """At its end, before its last prompt's end and where that began, and at the last block's end."""
    with load(bundle) as generator, load(bundle) as fresh:

        def reused(ids: list[int]) -> int:
            logits = generator.prefill(ids, FULL)
            assert relative_error(logits, fresh.prefill(ids, FULL, reuse=False)) < 1e-5
            return generator.reused

        assert reused(PROMPT) == 0
        generator.decode(5)
        assert reused(PROMPT) == len(PROMPT) - 1  # the same once more
        generator.decode(5)
        assert reused([*PROMPT, 5, *NEXT]) == len(PROMPT) + 1
        assert reused([*PROMPT, 5, 9]) == len(PROMPT) + 1  # where the last prompt began
        assert reused([*PROMPT[:200], *NEXT]) == 0  # its state was never kept
        assert reused(LONG) == 0
        assert reused([*LONG[:1100], *NEXT]) == BLOCK
        assert reused([*LONG[:1100], *NEXT, 5]) == 1140
        assert reused(LONG) == BLOCK


def test_a_policy_says_where_it_can_go_on(bundle: Path) -> None:
    """At a chunk's boundary whose state is known, or behind everything."""
    policy = altered(H2O, dense_tail=200)
    with load(bundle) as generator, load(bundle) as fresh:
        prompt = [*LONG, *NEXT, *LONG[:100]]
        generator.prefill(prompt, policy)
        generator.prefill([*prompt[:1200], *NEXT, *PROMPT[:100]], policy)
        assert generator.reused == BLOCK
        ids = [*prompt[:1200], *NEXT, *PROMPT[:100]]
        logits = generator.prefill(ids, policy)
        assert relative_error(logits, fresh.prefill(ids, policy)) < 1e-5


def test_copies_of_states() -> None:
    states = States()
    for row in range(COPIES):
        states.begin(10 * row + 10, [10 * row + 3, 10 * row + 7])
        assert states.row is None
        states.finish()
    last = [10 * row + more for row in range(COPIES // 2, COPIES) for more in (3, 7)]
    assert list(states.copied) == last  # those made first went
    assert len(set(states.copied.values())) == COPIES
    assert states.known == (*last, 10 * COPIES)


@pytest.mark.parametrize("when", [2, 5, 9])
def test_an_interrupted_prompt_leaves_nothing_wrong(bundle: Path, when: int) -> None:
    with load(bundle) as generator, load(bundle) as fresh:
        generator.prefill(PROMPT[:200], FULL)
        asked = iter(range(1000))
        with pytest.raises(Cancelled):
            generator.prefill(PROMPT, FULL, Watch(cancelled=lambda: next(asked) >= when))
        for ids in (PROMPT[:210], PROMPT):
            assert relative_error(generator.prefill(ids, FULL), fresh.prefill(ids, FULL, reuse=False)) < 1e-5
        assert generator.reused == 210


def test_a_step_that_fails_leaves_nothing_wrong(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However a device runs it: this one gets to its first layer."""
    with load(bundle) as generator, load(bundle) as fresh:
        forward = generator.loaded.forward

        def failing(token: int, session: Session) -> NDArray[np.float32]:
            forward.give_step(token, session)
            raise BackendError("the device is gone")

        generator.prefill(PROMPT, FULL)
        monkeypatch.setattr(forward, "decode_by_layers", failing)
        with pytest.raises(BackendError):
            generator.decode(5)
        ids = [*PROMPT, *NEXT]
        assert relative_error(generator.prefill(ids, FULL), fresh.prefill(ids, FULL)) < 1e-5
        assert generator.reused == len(PROMPT) - 1  # the state behind the prompt is lost


@pytest.mark.parametrize("by", ["decode", "generate"])
def test_an_interrupt_behind_a_step_leaves_nothing_wrong(
    bundle: Path, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C, where a step is done and the session does not know its token yet."""
    with load(bundle) as generator, load(bundle) as fresh:
        step = generator.loaded.forward.decode

        def interrupted(token: int, session: Session) -> NDArray[np.float32]:
            step(token, session)
            raise KeyboardInterrupt

        def interrupt() -> None:
            generator.prefill(PROMPT, FULL)
            monkeypatch.setattr(generator.loaded.forward, "decode", interrupted)
            with pytest.raises(KeyboardInterrupt):
                generator.decode(5) if by == "decode" else list(generator.generate(PROMPT, 5, FULL))
            monkeypatch.undo()

        interrupt()
        ids = [*PROMPT, *NEXT]
        assert relative_error(generator.prefill(ids, FULL), fresh.prefill(ids, FULL)) < 1e-5
        assert generator.reused == len(PROMPT) - 1  # the state behind the prompt is lost
        interrupt()
        with pytest.raises(InputError, match="prefill the prompt again"):
            generator.decode(5)


def test_tokens_that_are_given_are_as_if_decoded(bundle: Path) -> None:
    with load(bundle) as generator, load(bundle) as fresh:
        generator.prefill(PROMPT[:100], FULL)
        asked = iter(range(1000))
        with pytest.raises(Cancelled):
            list(generator.decode_given(PROMPT[100:], Watch(cancelled=lambda: next(asked) >= 3)))
        for _, logits in generator.decode_given(PROMPT[100:]):
            last = logits[-1].copy()
        assert relative_error(last, fresh.prefill(PROMPT, FULL)) < 1e-5


@pytest.mark.parametrize(
    ("name", "piece"), [("full", 37), pytest.param("full", 129, marks=pytest.mark.nightly), ("h2o", 64)]
)
def test_a_prompt_in_pieces_is_the_same(bundle: Path, name: str, piece: int) -> None:
    policy = POLICIES[name]
    with load(bundle) as generator, load(bundle) as fresh:
        events = list(generator.run(Request(Prompt(tuple(PROMPT)), 1, policy), prompt_piece=piece))
        assert any(isinstance(event, PromptPieceRead) for event in events)
        fresh.prefill(PROMPT, policy)
        assert relative_error(generator.decode(3), fresh.decode(3)) < 1e-5


def test_a_prompt_in_pieces_is_kept_where_it_began(bundle: Path) -> None:
    """However many pieces: so another message may come in its place."""
    with load(bundle) as generator, load(bundle) as fresh:
        generator.prefill(LONG[:200], FULL)
        generator.decode(5)
        for last in (PROMPT, NEXT):
            list(generator.run(Request(Prompt((*LONG[:200], 5, *last)), 1, FULL), prompt_piece=64))
            assert generator.reused == 201
        fresh.prefill([*LONG[:200], 5, *NEXT], FULL)
        assert relative_error(generator.decode(3), fresh.decode(3)) < 1e-5


@pytest.mark.parametrize("after", [Contiguous(), Paged()], ids=["contiguous", "paged"])
def test_saved_sessions_go_on_in_any_cache(bundle: Path, tmp_path: Path, after: Cache) -> None:
    path = tmp_path / "session.npz"
    with load(bundle) as generator, load(bundle, after) as other:
        generator.prefill(PROMPT, FULL)
        generator.decode(7)
        save_session(generator.session, path)
        SavedSession.open(path).load_into(other.session, FULL)
        ids = [*PROMPT, 7, *NEXT]
        assert relative_error(other.prefill(ids, FULL), generator.prefill(ids, FULL)) < 1e-5
        assert other.reused == 301
        assert relative_error(other.decode(4), generator.decode(4)) < 1e-5
        SavedSession.open(path).load_into(other.session, FULL)
        other.prefill([*PROMPT, *NEXT], FULL)
        assert other.reused == 0  # only the state at the end was saved


@pytest.mark.parametrize("cache", [Contiguous(), Paged()], ids=["contiguous", "paged"])
def test_sessions_take_turns(bundle: Path, cache: Cache) -> None:
    other = random_ids(280, 5, VOCAB).tolist()
    with load(bundle, cache, pool_bytes=1 << 26, slots=2) as generator, load(bundle, cache) as fresh:
        for ids in (PROMPT, other, [*PROMPT, *NEXT], [*other, *NEXT]):
            ours = generator.prefill(ids, FULL).copy()
            assert relative_error(ours, fresh.prefill(ids, FULL, reuse=False)) < 1e-5
        assert generator.reused == 280
        (beside,) = generator.others
        assert relative_error(beside.prefill([*other, *NEXT, 3], FULL), generator.decode(3)) < 1e-5
        assert beside.reused == 320
        steps = [one.decode(6).copy() for one in (generator, beside)]
        assert relative_error(*steps) < 1e-5


def test_slots_do_not_share_pages(bundle: Path) -> None:
    """Nobody makes room in pages behind states, which stay: each slot has as many pages as its context."""
    with pytest.raises(ConfigError, match=r"lower `slots` or `context`$"):
        load(bundle, Paged(), slots=2, slot_bytes=1)
    with load(bundle, Paged(), slots=2) as generator:
        for one in (generator, *generator.others):
            one.prefill(LONG, FULL)
            assert one.session.store.report()["pages"] == -(-CONTEXT // Paged().page)


def test_rows_in_a_file_pages_that_are_chosen_and_rows_that_go(bundle: Path, tmp_path: Path) -> None:
    with (
        load(bundle, Offload(file=str(tmp_path / "rows"))) as filed,
        load(bundle, decoding=Quest(budget=CONTEXT, page=8)) as paged,
        load(bundle, Evicting(tokens=350)) as evicting,
        load(bundle) as exact,
    ):
        for one in (filed, paged, evicting, exact):
            one.prefill(PROMPT, FULL)
        expected = exact.decode(5)
        for one in (filed, paged, evicting):
            assert relative_error(one.decode(5), expected) < 1e-5
        for token in range(2, 70):
            logits = evicting.decode(token)
        assert np.isfinite(logits).all()
        assert evicting.spec.forgets(evicting.length) > 0


ROWS = st.lists(st.tuples(st.integers(1, 1 + AHEAD), st.integers(1, 1 + AHEAD)), min_size=1, max_size=6)


def test_rows_whose_gates_do_not_fill_vectors_go_one_by_one(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("h2o_runtime.layers.state.LANES", 5)
    with Generator.load(bundle, context=CONTEXT, dense_form="native") as generator:
        (heads,) = {spec.query_heads for spec in generator.model.each_layer if spec.state is not None}
        told = f"gates of {heads} heads do not fill vectors of 5"
        assert generator.speculation("lookup") == ("off", told)


@pytest.fixture(
    scope="module", params=["contiguous", "paged", pytest.param("int8", marks=pytest.mark.nightly)]
)
def native(request: pytest.FixtureRequest, bundle: Path) -> Iterator[Generator]:
    with load(bundle, CACHES[request.param], dense_form="native") as generator:
        yield generator


@settings(max_examples=5, deadline=None)
@given(steps=ROWS)
def test_rows_of_a_step_are_those_of_steps_of_one_and_can_be_taken_back(
    native: Generator, steps: list[tuple[int, int]]
) -> None:
    alone, draw = Generator(native.loaded), np.random.default_rng(0)
    session = native.session
    for one in (native, alone):
        one.reset()
        one.prefill(PROMPT[:70], FULL)
    for count, kept in steps:
        tokens = draw.integers(2, VOCAB, count).tolist()
        rows = native.loaded.forward.decode_rows([StepRow(token, session) for token in tokens]).copy()
        kept = min(kept, count)
        for at in range(kept):
            np.testing.assert_array_equal(rows[at], alone.decode(tokens[at]))
            session.decoded([tokens[at]], ahead=count - at - 1)
        session.store.truncate(session.length)
        assert session.known.tolist() == alone.session.known.tolist()
    longer = [*session.known.tolist(), *NEXT]
    ours = native.prefill(longer, FULL).copy()
    np.testing.assert_array_equal(ours, alone.prefill(longer, FULL))
    assert native.reused == alone.reused


@settings(max_examples=5, deadline=None)
@given(period=st.integers(2, 9), sampled=st.booleans(), most=st.integers(1, 50))
def test_answers_that_are_read_ahead_are_those_of_plain_decode(
    native: Generator, period: int, sampled: bool, most: int
) -> None:
    prompt = (NEXT[:period] * 20)[:60]
    sampling = Sampling(temperature=0.3, top_k=4, seed=3) if sampled else Sampling()

    def answer(speculate: Speculation) -> list[int]:
        events = native.generate(prompt, most, FULL, sampling, reuse=False, speculate=speculate)
        return [one.sampled.token for one in events if isinstance(one, TokenGenerated)]

    assert native.speculation("lookup") == ("lookup", None)
    assert answer("lookup") == answer("off")


def test_the_footprint_is_what_is_reserved(bundle: Path) -> None:
    with load(bundle) as generator:
        store, model = generator.session.store, generator.model
        buffers = generator.loaded.forward.buffers
        ahead = rows_ahead("auto", generator.loaded.backend.native_products)
        assert store.nbytes == session_bytes(Contiguous(), model, CONTEXT, ahead)
        assert buffers.nbytes == activation_bytes(model, CONTEXT)
        assert footprint(model, CONTEXT, FULL, native_products=ahead > 0).cache == store.nbytes
        (size,) = (spec.head_size for spec in model.each_layer if spec.state is None)
        one = 2 * 2 * size * 4  # keys and values of a token, of the layer that has them
        assert cache_bytes(model, 1 << 20)["contiguous float32"] == one * (1 << 20) + states_bytes(
            model, 1 << 20
        )
        assert states_bytes(model, 1 << 20) == states_bytes(model, 1 << 11)


def test_copies_for_drafts_are_reserved_where_there_are_drafts(bundle: Path) -> None:
    """Measured: what a session's arrays take, each with the bytes of one state counted from its own arrays."""
    sizes = {}
    for speculate, form in (("auto", "native"), ("lookup", "native"), ("off", "native"), ("auto", "exact")):
        with load(bundle, speculate=speculate, dense_form=form) as generator:
            store = generator.session.store
            assert isinstance(store, StoreWithStates)
            one = sum(array.nbytes for layer in store._layers.values() for array in layer.present.values())
            sizes[speculate, form] = store.nbytes / one
            used = footprint(generator.model, CONTEXT, FULL, generator.spec)
            assert used.cache == store.nbytes
            if speculate == "off":
                drafter, reason = generator.speculation("lookup")
                assert (drafter, reason and "loaded with `speculate=off`" in reason) == ("off", True)
                list(generator.generate(PROMPT, 5, FULL, speculate="lookup"))
                assert generator.drafts.drafted == 0
    most = sizes["auto", "native"]
    assert sizes["lookup", "native"] == most
    assert sizes["off", "native"] == sizes["auto", "exact"] == pytest.approx(most - AHEAD)
