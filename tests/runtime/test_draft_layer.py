"""Answers that a model's own layer drafts are those of plain decode, whether its drafts are right or wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests import draft_reference
from tests.bundles import export, random_ids, relative_error
from tests.drafting import cheap, save_drafting
from tests.family_models import VOCAB

from h2o_runtime import Generator, Sampling
from h2o_runtime.answers.events import TokenGenerated
from h2o_runtime.bundles.manifest import Manifest
from h2o_runtime.caches import Cache, Contiguous, Offload, Paged
from h2o_runtime.dense_graphs.packed_files import HEAD
from h2o_runtime.errors import ConfigError
from h2o_runtime.execution.draft_layer import KEPT, READ, DraftRows
from h2o_runtime.execution.model_drafter import DraftAcceptance
from h2o_runtime.names import Speculation
from h2o_runtime.policies.decode.quest import Quest
from h2o_runtime.policies.prefill import Full, Query

FULL = Full()
Folders = Callable[[str], Path]  # by name, each made as it is first asked for
CONTEXT = 256
PROMPT = random_ids(70, 1, VOCAB).tolist()
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """Of qwen3_5: "wrong" and "right"; of another family: its name."""
    folder = tmp_path_factory.mktemp("drafting")

    def saved(name: str) -> Path:
        family = {} if name in ("wrong", "right") else {"family": name}
        return save_drafting(folder / name, right=0.02 if name == "right" else None, **family)

    return cache(saved)


@pytest.fixture(scope="module")
def bundles(checkpoints: Folders) -> Folders:
    return cache(lambda name: export(checkpoints(name), checkpoints(name).with_name(f"{name}-bundle")))


def load(bundle: Path, cache: Cache | None = None, **more: Any) -> Generator:
    options = {"context": CONTEXT, "threads": 1, "device": "cpu", "dense_form": "native", **more}
    return Generator.load(bundle, cache=cache or Contiguous(), **options)


CASES = {
    "wrong": ("wrong", Contiguous()),
    "right": ("right", Contiguous()),
    "right-paged": ("right", Paged()),
}  # conversations with drafts have other families too: test_draft_layer_sessions.py


@pytest.fixture(scope="module", params=CASES)
def generator(request: pytest.FixtureRequest, bundles: Folders) -> Iterator[Generator]:
    name, cache = CASES[request.param]
    with load(bundles(name), cache) as loaded:
        cheap(loaded)
        yield loaded


def answer(
    generator: Generator,
    speculate: Speculation,
    sampling: Sampling | None = None,
    most: int = 80,
    prompt: list[int] = PROMPT,
) -> tuple[list[Any], NDArray[np.float32], list[int]]:
    events = generator.generate(prompt, most, FULL, sampling, (7, 9), reuse=False, speculate=speculate)
    sampled = [event.sampled for event in events if isinstance(event, TokenGenerated)]
    assert generator.session.logits is not None
    return sampled, generator.session.logits, generator.session.known.tolist()


@settings(max_examples=5, deadline=None)
@given(
    seed=st.integers(0, 99),
    length=st.integers(1, 90),
    most=st.integers(1, 60),
    sampling=st.sampled_from(
        [
            Sampling(logprobs=2),
            Sampling(temperature=0.2, seed=2, logprobs=1),
            Sampling(temperature=1.0, top_k=5, seed=4, repetition_penalty=1.2),
        ]
    ),
    speculate=st.sampled_from(["mtp", "auto"]),
)
def test_answers_are_those_of_plain_decode(
    generator: Generator, seed: int, length: int, most: int, sampling: Sampling, speculate: Speculation
) -> None:
    prompt = random_ids(length, seed, VOCAB).tolist()
    (plain, logits, known), (ours, its_logits, its_known) = (
        answer(generator, by, sampling, most, prompt) for by in ("off", speculate)
    )
    assert ours == plain
    assert its_known == known
    np.testing.assert_array_equal(its_logits, logits)


@pytest.mark.parametrize(
    "policy", [FULL, Query(chunk_size=32, batch_size=64, local=8, heavy=8, dense_tail=4)]
)
def test_a_prompts_logits_are_the_same_where_the_head_reads_more_rows(bundles: Folders, policy: Any) -> None:
    with load(bundles("wrong")) as drafting, load(bundles("wrong"), speculate="off") as plain:
        for length in (1, 5, 70, 200):
            ids = random_ids(length, length, VOCAB)
            ours, theirs = (one.prefill(ids, policy, reuse=False) for one in (drafting, plain))
            np.testing.assert_array_equal(ours, theirs)


def test_right_drafts_are_accepted_and_wrong_ones_end(bundles: Folders) -> None:
    with load(bundles("right")) as right, load(bundles("wrong")) as wrong:
        answer(right, "mtp")
        assert right.drafts.accepted > 0.8 * right.drafts.drafted > 20
        answer(wrong, "mtp")
        assert wrong.drafts.accepted == 0 < wrong.drafts.drafted < 20


@pytest.mark.parametrize("most", [VOCAB, VOCAB // 4], ids=["all tokens", "the first ones"])
@pytest.mark.parametrize(
    "name", ["wrong", "deepseek_v3", pytest.param("qwen3_5_moe", marks=pytest.mark.nightly)]
)
def test_the_layer_is_what_it_says(
    bundles: Folders, checkpoints: Folders, monkeypatch: pytest.MonkeyPatch, most: int, name: str
) -> None:
    """In float64: attention of one layer to its own rows, and one token after the other."""
    monkeypatch.setattr("h2o_runtime.model_spec.LEAST_DRAFTED", most)
    with load(bundles(name)) as generator:
        layer = generator.loaded.forward.drafting
        assert layer is not None
        reference = draft_reference.reference(checkpoints(name), most)
        draw = np.random.default_rng(0)
        tokens = draw.integers(2, VOCAB, 20).tolist()
        hidden = draw.normal(size=(20, reference.hidden)).astype(np.float32)
        rows = layer.new_rows()
        layer.read(rows, tokens[:7], hidden[:7])
        ours = layer.draft(rows, tokens[7:], hidden[7:], 3)
        assert ours == reference.draft(tokens, hidden, 3)
        assert relative_error(layer._out[0], reference.out.numpy()) < 1e-5
        assert (rows.length, rows.position) == (20, 20)
        assert layer.draft(rows, [ours[0]], layer._out[:1], 1) == reference.draft(
            [*tokens, ours[0]], np.concatenate((hidden, layer._hidden[:1])), 1
        )


def test_rows_are_the_last_ones(bundles: Folders) -> None:
    with load(bundles("wrong")) as generator:
        spec = generator.model.draft
        assert spec is not None
        rows, written = DraftRows(spec), 0
        while written < 3 * KEPT:
            rows.make_room(READ)
            rows.k[rows.length : rows.length + READ] = np.arange(written, written + READ)[:, None, None]
            rows.length, rows.position, written = rows.length + READ, rows.position + READ, written + READ
            kept = rows.k[: rows.length, 0, 0]
            np.testing.assert_array_equal(kept, np.arange(written - len(kept), written))
            assert len(kept) >= min(KEPT, written)
        assert rows.position == written


def test_drafts_come_again_after_a_while() -> None:
    acceptance = DraftAcceptance(3)
    for _ in range(10):
        acceptance.seen(0, False)
    low = acceptance.rate(0)
    for _ in range(200):
        acceptance.unseen()
    assert low < 0.3 < 0.85 < acceptance.rate(0)
    assert acceptance.rate(1) == pytest.approx(0.9)


def offloaded(bundle: Path, **more: Any) -> Generator:
    return load(bundle, Offload(buffers=2, file=str(bundle.with_name("rows"))), **more)


REFUSED: dict[str, tuple[Callable[[Path], Generator], str]] = {
    "exact": (partial(load, speculate="mtp", dense_form="exact"), "on a CPU with native products alone"),
    "lookup, exact": (partial(load, speculate="lookup", dense_form="exact"), "depends on those beside it"),
    "mtp, offloaded": (partial(offloaded, speculate="mtp"), "does not leave rows where"),
    "lookup, offloaded": (partial(offloaded, speculate="lookup"), "does not leave rows where"),
    "mtp, quest": (partial(load, decoding=Quest(budget=64), speculate="mtp"), "quest remembers every row"),
}


@pytest.mark.parametrize(("loading", "reason"), REFUSED.values(), ids=REFUSED)
def test_where_the_layer_does_not_run(
    bundles: Folders, loading: Callable[[Path], Generator], reason: str
) -> None:
    with pytest.raises(ConfigError, match=f"`speculate=(mtp|lookup)` has no effect, because .*{reason}"):
        loading(bundles("right"))


def test_it_is_left_out_silently_where_nothing_asks_for_it(bundles: Folders) -> None:
    with offloaded(bundles("right")) as generator:
        assert generator.speculation()[0] == "off"


@pytest.mark.parametrize(
    "tied", [pytest.param(False, marks=pytest.mark.nightly), True], ids=["own-head", "tied"]
)
def test_integer_weights_share_the_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tied: bool) -> None:
    checkpoint = save_drafting(tmp_path / "checkpoint", right=0.02, tied=tied)
    bundle = export(checkpoint, tmp_path / "bundle", weights="int8")
    manifest = Manifest.read(bundle)
    last, draft = (graphs[-1].weights for graphs in (manifest.dense_graphs(), manifest.draft_graphs()))
    assert len(set(last) & set(draft)) == 1  # the head's file, or the embedding's
    monkeypatch.setattr("h2o_runtime.model_spec.LEAST_DRAFTED", VOCAB // 2)
    with load(bundle) as generator:
        backend: Any = generator.loaded.backend
        heads = [
            next(
                value for key, value in backend._sessions[graph]._session._h2o_weights.items() if HEAD in key
            )
            for graph in (manifest.dense_graphs()[-1].name, "draft_01")
        ]
        assert heads[0].data_ptr() == heads[1].data_ptr()
        plain, ours = (answer(generator, by) for by in ("off", "mtp"))
        assert ours[0] == plain[0]
        assert generator.drafts.drafted > 0


def test_a_bundle_without_the_layer(shared_folder: Path, bundles: Folders, tiny_bundle: Path) -> None:
    with pytest.raises(
        ConfigError, match="no effect, because the bundle has no layer that drafts tokens: leave"
    ):
        load(tiny_bundle, speculate="mtp")
    with load(tiny_bundle) as generator:
        assert generator.speculation() == ("lookup", None)
        used, reason = generator.speculation("mtp")
        assert used == "off"
        assert reason is not None
        assert "no layer that drafts" in reason
    with load(bundles("right"), speculate="lookup") as generator:
        assert generator.speculation("mtp")[0] == "off"
        assert generator.speculation("auto") == ("lookup", None)


def test_an_embedding_is_the_same_beside_a_draft_layer(bundles: Folders) -> None:
    with load(bundles("right")) as generator:
        with pytest.raises(StopIteration) as done:
            next(generator.embed(PROMPT))
        assert done.value.value.shape == (generator.model.hidden_size,)
