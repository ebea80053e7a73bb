"""The measures of h2o-eval: against cases computed by hand, and against brute force in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.prefill import prefill_of

from h2o_cli.eval.metrics import buckets, counted, divergence, entropy, evenly, frequency_loss, perplexity
from h2o_cli.eval.policies import BASELINES, Baseline
from h2o_cli.eval.recall import (
    KeyList,
    LayerMass,
    ListWatch,
    best_mass,
    by_list,
    measure_recall,
    selected_mass,
)
from h2o_runtime import Generator
from h2o_runtime.policies.prefill import (
    PREFILL,
    Full,
    LayerCall,
    PrefillPolicy,
    PrefillReport,
    PromptCall,
    Query,
)
from h2o_runtime.schedule import Span

FULL = Full()
SMALL = {"chunk_size": 32, "batch_size": 64, "local": 4, "heavy": 8, "dense_tail": 0}


def baseline(name: str, budget: dict[str, Any]) -> Baseline:
    return BASELINES.make({**budget, "baseline": name})


# --- Losses and distributions -----------------------------------------------------------------------------


def test_perplexity_is_a_geometric_mean() -> None:
    assert perplexity(-np.log([1 / 2, 1 / 8])) == pytest.approx(4.0)  # of 2 and 8
    assert perplexity(np.array([1e4])) == math.inf


def test_divergence_of_two_coins() -> None:
    fair, biased = np.log([[0.5, 0.5]]), np.log([[0.75, 0.25]])
    expected = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    assert divergence(fair, biased)[0] == pytest.approx(expected)
    assert divergence(fair, fair)[0] == 0.0
    assert entropy(fair)[0] == pytest.approx(math.log(2))


def test_which_losses_count() -> None:
    nll = np.arange(1, 10)  # of tokens 1 … 9 of ten
    assert counted(nll, 4).tolist() == [4, 5, 6, 7, 8, 9]
    assert counted(nll, 1).tolist() == counted(nll, 0).tolist() == nll.tolist()
    parts = {rows.start: part.tolist() for rows, part in buckets(nll, 4)}
    assert parts == {0: [1, 2, 3], 4: [4, 5, 6, 7], 8: [8, 9]}


def test_loss_of_who_only_counts() -> None:
    # 7 is one of ten, 7 came once in one, 8 is one of nine others, 7 came twice in three.
    shares = (1 / 10, 1 / (1 + 1), 1 / (2 + 1) / 9, 2 / (3 + 2))
    assert frequency_loss([7, 7, 8, 7], 10) == pytest.approx(-sum(map(math.log, shares)) / 4)


def test_places_are_apart_and_within() -> None:
    assert evenly(10, 20, 4).tolist() == [10, 13, 16, 19]
    assert evenly(10, 13, 100).tolist() == [10, 11, 12]
    assert evenly(5, 5, 3).tolist() == []


# --- Attention mass ---------------------------------------------------------------------------------------


def probabilities(q: NDArray[Any], k: NDArray[Any], scale: float) -> NDArray[np.float64]:
    """Full causal attention of a whole prompt, one number at a time: [Hq, n, n] in float64."""
    n, heads, _ = q.shape
    group = heads // k.shape[1]
    out = np.zeros((heads, n, n))
    for head in range(heads):
        for row in range(n):
            dots = [
                scale * float(q[row, head].astype(np.float64) @ k[key, head // group].astype(np.float64))
                for key in range(row + 1)
            ]
            top = max(dots)
            terms = [math.exp(dot - top) for dot in dots]
            out[head, row, : row + 1] = np.array(terms) / sum(terms)
    return out


@pytest.fixture
def attention() -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """q [300, 4, 8], k [300, 2, 8] and their probabilities."""
    lot = np.random.default_rng(5)
    q, k = lot.normal(size=(300, 4, 8)), lot.normal(size=(300, 2, 8))
    return q, k, probabilities(q, k, 0.5)


def test_sums_of_pieces_are_those_of_the_list(attention: Any) -> None:
    q, k, truth = attention
    layer = LayerMass(q, k, 0.5)
    for start, stop, past in ((96, 300, 96), (100, 140, 64), (130, 290, 128)):  # within a piece, and across
        expected = truth[:, start:stop, :past].sum(axis=1)
        np.testing.assert_allclose(layer.of(Span(start, stop), past), expected, rtol=1e-12)


def test_kept_and_best_of_a_mass() -> None:
    mass = np.array([[5.0, 1.0, 3.0, 2.0], [0.0, 4.0, 4.0, 1.0]])
    keys = np.array([[0, 3, 9], [1, 1, 3]])  # 9 is not of the past; a key counts once
    assert selected_mass(mass, keys).tolist() == [7.0, 5.0]
    assert best_mass(mass, 2).tolist() == [8.0, 8.0]
    assert best_mass(mass, 9).tolist() == [11.0, 9.0]
    assert by_list(mass, 1).tolist() == [[5.0, 5.0, 7.0, 3.0]]


# --- Recall, on a model -----------------------------------------------------------------------------------


def test_recall_equals_brute_force(tiny_generator: Generator, heldout_ids: Any) -> None:
    ids = heldout_ids[:96]
    spied = Spied(rule=FULL)
    tiny_generator.prefill(ids, spied, reuse=False)
    local = baseline("local", SMALL)
    (found,) = measure_recall(tiny_generator, ids, [local])
    scale = tiny_generator.model.scale
    for layer, (q, k) in enumerate(spied.rows):
        truth = probabilities(q, k, scale)
        group = q.shape[1] // k.shape[1]
        kept, best = np.zeros(k.shape[1]), np.zeros(k.shape[1])
        for start in (32, 64):  # chunks of 32, of which the first has no past
            sums = truth[:, start : start + 32, :start].sum(axis=1).reshape(-1, group, start).sum(axis=1)
            kept += sums[:, -12:].sum(axis=1)
            best += np.sort(sums, axis=1)[:, -12:].sum(axis=1)
        np.testing.assert_allclose(found.selected[layer], np.repeat(kept / group, group), rtol=1e-4)
        np.testing.assert_allclose(found.best[layer], np.repeat(best / group, group), rtol=1e-4)


def test_no_list_is_better_than_the_oracles(tiny_generator: Generator, heldout_ids: Any) -> None:
    settings = SMALL | {"local": 0, "heavy": 12}
    rules = [prefill_of(**SMALL), baseline("random", SMALL), baseline("oracle", settings)]
    rule, random, oracle = measure_recall(tiny_generator, heldout_ids[:200], rules)
    np.testing.assert_allclose(oracle.of_best, 1.0, rtol=1e-5)
    for other in (rule, random):
        assert (other.of_best <= 1 + 1e-5).all()
        assert (other.best == oracle.best).all()
    assert random.of_best.mean() < rule.of_best.mean() < 1


@dataclass(frozen=True)
class Spied(PrefillPolicy[Any]):
    """Another policy; what each layer saw is copied, and its lists are noted."""

    name: ClassVar[str] = "spied"
    title: ClassVar[str] = "spied"
    phases: ClassVar[tuple[str, ...]] = ()

    rule: PrefillPolicy[Any] = field(default_factory=lambda: Query().algorithm)
    rows: list[tuple[Any, Any]] = field(default_factory=list)
    seen: list[list[KeyList]] = field(default_factory=list)

    def new_state(self, model: Any, capacity: int, device: Any) -> Any:
        return self.rule.new_state(model, capacity, device)

    def start_prompt(self, prompt: PromptCall, state: Any) -> None:
        self.rule.start_prompt(prompt, state)

    def attend(self, call: LayerCall, state: Any) -> None:
        self.rows.append((call.q.copy(), call.k.copy()))
        watch = ListWatch(call.provider, call.q)
        self.rule.attend(replace(call, provider=watch, needed=0), state)  # in the last layer too
        self.seen.append(watch.lists())

    def visible_pairs(self, n: int) -> int:
        return self.rule.visible_pairs(n)

    def report(self, state: Any, origin: Any) -> PrefillReport:
        return self.rule.report(state, origin)


@pytest.mark.parametrize("settings", [{"score": "colsum"}, {"score": "window", "window": 4}], ids=str)
def test_lists_that_are_seen_are_those_that_are_told(
    tiny_generator: Generator, heldout_ids: Any, settings: dict[str, Any]
) -> None:
    spied = Spied(rule=prefill_of(**SMALL, **settings))
    tiny_generator.prefill(heldout_ids[:128], spied, reuse=False)
    told = tiny_generator.boundary_memory()  # [layers, boundaries, Hs, M]
    for layer, lists in enumerate(spied.seen):
        assert [(one.rows.start, one.past) for one in lists] == [(32, 32), (64, 64), (96, 96)]
        for one, kept in zip(lists, told[layer], strict=True):
            np.testing.assert_array_equal(one.keys, kept)


def test_a_list_that_is_widened_is_everything(tiny_generator: Generator, heldout_ids: Any) -> None:
    """And rows that are only compared are nobody's list."""
    guarded = prefill_of(**SMALL, tile=16, missed=0.0)
    spied = Spied(rule=guarded)
    tiny_generator.session.drop_state()  # of another rule, which looks the same from outside
    tiny_generator.prefill(heldout_ids[:128], spied, reuse=False)
    widened = 0
    for lists in spied.seen:
        assert [one.rows.start for one in lists] == list(range(32, 128, 16))
        for one in lists:
            assert all(len(np.unique(own)) == len(own) for own in one.keys)
            assert one.keys.shape[1] in (12, one.past)
            widened += one.keys.shape[1] == one.past
    assert widened > 0


# --- Baselines --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BASELINES.names)
def test_a_baseline_sees_nothing_of_what_comes(
    tiny_generator: Generator, heldout_ids: Any, name: str
) -> None:
    config, ids = baseline(name, SMALL), heldout_ids[:128].copy()
    before = tiny_generator.logprobs(ids, config)[:63]
    ids[64:] = 5
    np.testing.assert_array_equal(tiny_generator.logprobs(ids, config)[:63], before)


def test_what_baselines_keep(tiny_generator: Generator, heldout_ids: Any) -> None:
    assert not set(BASELINES.names) & set(PREFILL.names)
    kept = {}
    for name in BASELINES.names:
        config = baseline(name, SMALL | ({"sinks": 2} if name == "sinks" else {}))
        spied = Spied(rule=config)
        tiny_generator.prefill(heldout_ids[:96], spied, reuse=False)
        kept[name] = [one.keys for layer in spied.seen for one in layer if one.past == 64]
        for keys in kept[name]:
            assert keys.shape == (tiny_generator.model.kv_heads, 12)
            assert (np.diff(keys, axis=1) > 0).all()  # sorted and unique
            assert 0 <= keys.min() <= keys.max() < 64
    for keys in kept["local"]:
        assert (keys == np.arange(52, 64)).all()
    for keys in kept["sinks"]:
        assert (keys == [0, 1, *range(54, 64)]).all()
    for keys in (*kept["random"], *kept["oracle"]):
        assert (keys[:, -4:] == np.arange(60, 64)).all()
    assert str(config) == "oracle batch_size=64 chunk_size=32 local=4 heavy=8 dense_tail=0"
