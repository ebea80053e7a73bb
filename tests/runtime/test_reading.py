"""A prompt in pieces gives what it gives at once; what is stopped between two pieces is gone on from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests import bundles
from tests.prefill import altered

from h2o_runtime import Generator
from h2o_runtime.answers.events import Prefilled, PromptPieceRead, TokenGenerated, alone
from h2o_runtime.answers.request import Prompt, Request
from h2o_runtime.caches import Cache, Contiguous, Evicting, Offload, Paged
from h2o_runtime.policies.decode import DecodePolicy, FullDecode
from h2o_runtime.policies.decode.quest import Quest
from h2o_runtime.policies.prefill import PrefillPolicy, Query

pytestmark = pytest.mark.usefixtures("models_stay_loaded")

CONTEXT = 400
POLICY = Query(chunk_size=32, batch_size=64, local=8, heavy=8, dense_tail=10)
BATCHES = altered(POLICY, batch_size=192)
POLICIES = {
    "query": altered(POLICY, score="query", tile=8),
    "query-heads": altered(POLICY, score="query", heads="query", candidates=40),
    "query-guarded": altered(POLICY, score="query", tile=8, missed=0.037),
    "colsum": altered(POLICY, score="colsum"),
    "colsum-tail": altered(POLICY, score="colsum", dense_tail=50),
    "window": altered(POLICY, score="window", window=4, dense_tail=0),
    "minference": altered(POLICY, policy="minference", vertical=30, slash=50),
    "subquadratic": altered(POLICY, policy="subquadratic", window=16, block=16),
    "full": altered(POLICY, policy="full"),
    "full-batches": altered(BATCHES, policy="full"),
    "subquadratic-batches": altered(BATCHES, policy="subquadratic", window=16, block=16),
}
DOCUMENT = bundles.random_ids(CONTEXT, 3).tolist()
OTHER = [*DOCUMENT[:110], *bundles.random_ids(130, 4).tolist()]


@pytest.fixture(scope="module")
def bundle(shared_folder: Path) -> Path:
    return bundles.named(shared_folder, "llama-g2-d64-llama3")[1]


def load(bundle: Path, cache: Cache, decoding: DecodePolicy[Any]) -> Generator:
    return Generator.load(bundle, context=CONTEXT, threads=1, device="cpu", cache=cache, decoding=decoding)


def story(generator: Generator, policy: PrefillPolicy[Any], piece: int | None) -> Iterator[NDArray[Any]]:
    """Logits of a prompt, of a token, of a turn of several chunks, of a prompt that begins alike; all memories, and
    what the prompts saw."""
    prompt = DOCUMENT[:170]
    for _ in range(2):
        yield read(generator, prompt, policy, piece)[0]
        yield from (memory.copy() for memory in generator.report().last)
        yield generator.boundary_memory()
        yield seen(generator)
        yield generator.decode(7)
        prompt = [*prompt, 7, *DOCUMENT[170:297]]
    yield read(generator, OTHER, policy, piece)[0]
    yield read(generator, OTHER[:64], policy, piece)[0]


def seen(generator: Generator) -> NDArray[np.float64]:
    found = generator.seen()
    return np.array([] if found is None else astuple(found))


def read(
    generator: Generator, prompt: list[int], policy: PrefillPolicy[Any], piece: int | None
) -> tuple[NDArray[np.float32], int]:
    """Logits after the prompt, and how often others might have run before."""
    pauses = 0
    for event in generator.run(Request(Prompt(tuple(prompt)), 1, policy), prompt_piece=piece):
        pauses += isinstance(event, PromptPieceRead)
    assert generator.session.logits is not None
    return generator.session.logits, pauses


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize(
    ("cache", "decoding"),
    [(Contiguous(), FullDecode()), (Paged(rows="int8"), Quest(budget=32))],
    ids=["contiguous", "paged"],
)
def test_pieces_give_what_the_whole_gives(
    bundle: Path, name: str, cache: Cache, decoding: DecodePolicy[Any]
) -> None:
    policy = POLICIES[name]
    with load(bundle, cache, decoding) as whole, Generator(whole.loaded) as cut:
        for piece in (32, 80):
            for wanted, found in zip(story(whole, policy, None), story(cut, policy, piece), strict=True):
                np.testing.assert_array_equal(found, wanted)
            whole.reset()
            cut.reset()


def test_some_chunks_of_a_guarded_prompt_see_all_of_their_past(bundle: Path) -> None:
    """Or the test above would compare nothing."""
    with load(bundle, Contiguous(), FullDecode()) as generator:
        assert read(generator, DOCUMENT[:170], POLICIES["query-guarded"], 32)[1] == 5
        found = generator.seen()
        assert found is not None
        assert 0 < found.widened < 1


def test_a_piece_is_a_chunk_and_the_last_has_the_tail(bundle: Path) -> None:
    with load(bundle, Contiguous(), FullDecode()) as generator:
        for name, length, pieces in [
            ("colsum", 169, 5),  # the last is of 32 + 9 rows, because the tail has 10
            ("colsum", 170, 6),  # the last is the tail
            ("colsum", 171, 6),
            ("colsum-tail", 170, 4),
            ("window", 160, 5),
            ("window", 161, 6),
            ("minference", 161, 6),
            ("colsum", 32, 1),
            ("full", 170, 3),  # by batches and blocks of 64
        ]:
            generator.reset()
            assert read(generator, DOCUMENT[:length], POLICIES[name], 32)[1] == pieces - 1, name


@pytest.mark.parametrize(
    ("cache", "policy"),
    [
        (Evicting(tokens=64), POLICIES["full"]),
        (Contiguous(), altered(POLICIES["minference"], estimate="prompt")),
    ],
    ids=["evicting", "minference-prompt"],
)
def test_what_cannot_be_cut_is_read_at_once(bundle: Path, cache: Cache, policy: PrefillPolicy[Any]) -> None:
    with load(bundle, cache, FullDecode()) as generator:
        assert read(generator, DOCUMENT[:170], policy, 32)[1] == 0


@pytest.mark.parametrize("name", POLICIES)
def test_a_prompt_that_was_left_between_pieces_is_gone_on_from(bundle: Path, name: str) -> None:
    policy = POLICIES[name]
    with load(bundle, Contiguous(), FullDecode()) as left, Generator(left.loaded) as fresh:
        run = left.run(Request(Prompt(tuple(DOCUMENT[:300])), 1, policy), prompt_piece=32)
        while left.length < 96:
            assert next(run) == PromptPieceRead()
        run.close()
        wanted = fresh.prefill(OTHER, policy)
        found = left.prefill(OTHER, policy)
        if left.reused % 32:  # all that is shared, wherever it ends, and rounded otherwise
            assert left.reused == 110
            np.testing.assert_allclose(found, wanted, atol=1e-4)
            return
        assert left.reused == 96
        np.testing.assert_array_equal(found, wanted)

        # A turn that is left is no part of the conversation.
        turn = [*OTHER, *DOCUMENT[:120]]
        run = left.run(Request(Prompt(tuple(turn)), 1, policy), prompt_piece=32)
        assert next(run) == PromptPieceRead()
        run.close()
        found = read(left, turn, policy, 32)[0]
        if not left.reused:
            fresh.reset()  # the rule cannot tell what it knew before the turn, and reads all anew
        np.testing.assert_array_equal(found, fresh.prefill(turn, policy))


def test_steps_of_others_between_pieces_change_nothing(bundle: Path, tmp_path: Path) -> None:
    """One reads a prompt in pieces, the other generates a token after each: both give what they give alone."""
    policy = POLICIES["query"]
    for cache in (Contiguous(), Paged(), Offload(buffers=1, file=str(tmp_path / "rows"))):
        with load(bundle, cache, FullDecode()) as reader, Generator(reader.loaded) as writer:
            short = Request(Prompt(tuple(DOCUMENT[:50])), 12, policy, speculate="off")
            alone_ = [*alone(writer.run(short), writer.step)]
            writer.reset()
            wanted = reader.prefill(DOCUMENT[:300], policy).copy()
            reader.reset()

            run = writer.run(short)
            events = [next(run), next(run)]
            for item in reader.run(Request(Prompt(tuple(DOCUMENT[:300])), 1, policy), prompt_piece=32):
                if isinstance(item, PromptPieceRead):
                    step: Any = next(run)
                    events.append(run.send(writer.step(step.tokens)))
            assert reader.session.logits is not None
            np.testing.assert_array_equal(reader.session.logits, wanted)
            assert isinstance(events[0], Prefilled)
            assert len(events) > 8
            for found, expected in zip(events[1:], alone_[1:], strict=False):
                assert isinstance(found, TokenGenerated)
                assert found == expected
