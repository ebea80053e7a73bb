"""The sampler against a reference written here in float64 from the definitions, without shortcuts."""

from __future__ import annotations

import dataclasses
import json
import math
import pickle

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from h2o_runtime.answers.sampling import Sampler, Sampling
from h2o_runtime.errors import BackendError, ConfigError, H2OError, UnknownTokenError

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


def log_softmax(logits: F32) -> F64:
    x = logits.astype(np.float64)
    x = x - x.max()
    return np.asarray(x - np.log(np.exp(x).sum()))


def reference(logits: F32, s: Sampling, history: list[int]) -> tuple[F64, float]:
    """Probability of each token [vocab], and how far the nearest cut is from being decided by rounding."""
    margin = math.inf
    x = logits.astype(np.float64)
    window = [] if s.repeat_last_n == 0 else history if s.repeat_last_n < 0 else history[-s.repeat_last_n :]
    for token in set(window):
        x[token] = x[token] / s.repetition_penalty if x[token] > 0 else x[token] * s.repetition_penalty
        x[token] -= window.count(token) * s.frequency_penalty + s.presence_penalty
    for token, bias in s.logit_bias.items():
        x[token] += bias
    x = (x / s.temperature).astype(np.float64)
    order = sorted(range(len(x)), key=lambda i: (-x[i], i))
    if s.top_k:
        order = order[: s.top_k]
    p = np.exp(x[order] - x[order[0]])
    p /= p.sum()
    if s.top_p < 1:
        mass = np.cumsum(p)
        margin = float(np.abs(mass - s.top_p).min())
        keep = 1 + int((mass < s.top_p).sum())
        order, p = order[:keep], p[:keep]
    if s.min_p > 0:
        margin = min(margin, float(np.abs(p / p[0] - s.min_p).min()))
        order = [i for i, q in zip(order, p, strict=True) if q >= s.min_p * p[0]]
        p = p[: len(order)]
    out = np.zeros(len(x))
    out[order] = p / p.sum()
    return out, margin


def dense(sampler: Sampler, logits: F32) -> F64:
    ids, p = sampler.distribution(logits)
    assert len(set(ids.tolist())) == len(ids)
    out = np.zeros(sampler.vocab_size)
    out[ids] = p
    return out


# Quarter steps make ties common and let float32 hold them exactly.
quarters = st.integers(-40, 40).map(lambda i: i / 4)


@st.composite
def cases(draw: st.DrawFn) -> tuple[F32, Sampling, list[int]]:
    vocab = draw(st.integers(1, 60))
    logits = np.array(draw(st.lists(quarters, min_size=vocab, max_size=vocab)), np.float32)
    tokens = st.integers(0, vocab - 1)
    sampling = Sampling(
        temperature=draw(st.sampled_from([0.25, 0.5, 1.0, 2.0])),
        top_k=draw(st.integers(0, vocab + 5)),
        top_p=draw(st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.999, 1.0])),
        min_p=draw(st.sampled_from([0.0, 0.05, 0.3, 1.0])) if draw(st.booleans()) else 0.0,
        repetition_penalty=draw(st.sampled_from([1.0, 0.5, 2.0])),
        presence_penalty=draw(st.sampled_from([0.0, -0.5, 1.5])),
        frequency_penalty=draw(st.sampled_from([0.0, -0.25, 0.75])),
        repeat_last_n=draw(st.sampled_from([-1, 0, 1, 3, 64])),
        logit_bias=draw(st.dictionaries(tokens, quarters, max_size=3)),
    )
    return logits, sampling, draw(st.lists(tokens, max_size=10))


@settings(max_examples=36, deadline=None)
@given(cases())
def test_distribution_equals_the_definitions(case: tuple[F32, Sampling, list[int]]) -> None:
    logits, sampling, history = case
    expected, margin = reference(logits, sampling, history)
    assume(margin > 1e-6)
    sampler = Sampler(sampling, logits.size)
    sampler.reset(history)
    before = logits.copy()
    np.testing.assert_allclose(dense(sampler, logits), expected, rtol=1e-6, atol=1e-12)
    for _ in range(5):
        assert expected[sampler.sample(logits).token] > 0
    np.testing.assert_array_equal(logits, before)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0, seed=1),
        Sampling(temperature=0.7, top_k=10, seed=2),
        Sampling(temperature=1.5, top_p=0.8, seed=3),
        Sampling(temperature=2.0, min_p=0.1, repetition_penalty=1.3, seed=4),
    ],
    ids=["plain", "top-k", "top-p", "min-p"],
)
def test_draws_follow_the_distribution(sampling: Sampling) -> None:
    logits = np.random.default_rng(7).normal(0, 2, 40).astype(np.float32)
    expected, _ = reference(logits, sampling, [3, 5, 3])
    sampler = Sampler(sampling, 40)
    sampler.reset([3, 5, 3])
    n = 4000
    counts = np.bincount([sampler.sample(logits).token for _ in range(n)], minlength=40)
    assert counts[expected == 0].sum() == 0
    # Pearson's statistic over the cells large enough for it has mean `cells` and variance 2 `cells`.
    cells = expected * n > 5
    assert cells.sum() > 3
    statistic = float((((counts - expected * n) ** 2)[cells] / (expected * n)[cells]).sum())
    assert statistic < cells.sum() + 5 * math.sqrt(2 * cells.sum())


@settings(max_examples=24, deadline=None)
@given(st.data())
def test_logprobs_are_of_the_unmodified_logits(data: st.DataObject) -> None:
    vocab = data.draw(st.integers(1, 80))
    logits = np.array(data.draw(st.lists(quarters, min_size=vocab, max_size=vocab)), np.float32)
    count = data.draw(st.integers(0, vocab + 3))
    temperature = data.draw(st.sampled_from([0.0, 0.3, 3.0]))
    sampler = Sampler(Sampling(temperature=temperature, presence_penalty=2.0, logprobs=count), vocab)
    sampler.reset([0])
    result = sampler.sample(logits)
    expected = log_softmax(logits)
    assert result.logprob == pytest.approx(expected[result.token], abs=2e-6)
    order = sorted(range(vocab), key=lambda i: (-logits[i], i))[:count]
    assert [i for i, _ in result.top] == order
    assert [p for _, p in result.top] == pytest.approx(list(expected[order]), abs=2e-6)


def test_greedy_takes_the_best_after_penalties_and_bias() -> None:
    logits = np.array([1.0, 4.0, 3.9, -1.0], np.float32)
    assert Sampler(Sampling(), 4).sample(logits).token == 1
    sampler = Sampler(Sampling(presence_penalty=0.2), 4)
    sampler.accept(1)
    assert sampler.sample(logits).token == 2
    assert Sampler(Sampling(logit_bias={3: 6.0}), 4).sample(logits).token == 3
    assert Sampler(Sampling(logit_bias={1: -math.inf}), 4).sample(logits).token == 2
    assert Sampler(Sampling(), 4).sample(np.array([2, 5, 5, 5], np.float32)).token == 1


def test_ties_go_to_the_lower_id() -> None:
    logits = np.zeros(8, np.float32)
    ids, p = Sampler(Sampling(temperature=1, top_k=3), 8).distribution(logits)
    assert ids.tolist() == [0, 1, 2]
    assert p.tolist() == pytest.approx([1 / 3] * 3)
    # Exactly half of the mass is reached by exactly four of eight equal tokens.
    assert Sampler(Sampling(temperature=1, top_p=0.5), 8).distribution(logits)[0].tolist() == [0, 1, 2, 3]
    assert Sampler(Sampling(temperature=1, top_p=0.51), 8).distribution(logits)[0].tolist() == [0, 1, 2, 3, 4]
    assert Sampler(Sampling(temperature=1, min_p=1.0), 8).distribution(logits)[0].tolist() == list(range(8))
    assert Sampler(Sampling(temperature=1, top_p=0.0), 8).distribution(logits)[0].tolist() == [0]


@pytest.mark.parametrize("top_p", [0.5, 0.9, 0.99999, 1 - 1e-16])
def test_nucleus_of_a_flat_distribution_needs_several_guesses(top_p: float) -> None:
    vocab = 5000
    logits = np.random.default_rng(0).normal(0, 0.1, vocab).astype(np.float32)
    sampling = Sampling(temperature=1.0, top_p=top_p)
    order = np.argsort(-logits, kind="stable")
    p = np.exp(log_softmax(logits))[order]
    keep = min(vocab, 1 + int((np.cumsum(p) < top_p).sum()))
    ids, _ = Sampler(sampling, vocab).distribution(logits)
    assert abs(len(ids) - keep) <= (1 if top_p < 0.999999 else 3)
    assert ids.tolist() == order[: len(ids)].tolist()


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 5e-324])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    logits = np.random.default_rng(3).normal(0, 3, 1000).astype(np.float32)
    for extra in ({}, {"top_p": 0.9}, {"top_k": 5, "min_p": 0.1}):
        sampler = Sampler(Sampling(temperature=temperature, **extra), 1000)  # type: ignore[arg-type]
        assert {sampler.sample(logits).token for _ in range(20)} == {int(logits.argmax())}


def test_tokens_of_probability_zero_are_never_drawn() -> None:
    logits = np.full(50, -np.inf, np.float32)
    logits[[7, 11]] = 0
    sampler = Sampler(Sampling(temperature=1, seed=0, logprobs=3), 50)
    results = [sampler.sample(logits) for _ in range(300)]
    assert {r.token for r in results} == {7, 11}
    assert results[0].top[2] == (0, -math.inf)


def test_the_seed_decides() -> None:
    logits = np.zeros(1000, np.float32)

    def tokens(sampler: Sampler) -> list[int]:
        return [sampler.sample(logits).token for _ in range(20)]

    first = Sampler(Sampling(temperature=1, seed=42), 1000)
    expected = tokens(first)
    assert tokens(Sampler(Sampling(temperature=1, seed=42), 1000)) == expected
    assert tokens(first) != expected
    first.reset()
    assert tokens(first) == expected
    assert tokens(Sampler(Sampling(temperature=1, seed=43), 1000)) != expected
    fresh = Sampler(Sampling(temperature=1), 1000)
    again = Sampler(Sampling(temperature=1, seed=fresh.seed), 1000)
    assert tokens(fresh) == tokens(again)
    # Pinned, so that a release which changes what a seed means is noticed.
    assert expected[:4] == [int(u * 1000) for u in pcg64_uniforms(42, 4)]


def pcg64_uniforms(seed: int, n: int) -> list[float]:
    raw = np.random.PCG64(seed).random_raw(n)
    return [(int(x) >> 11) / 2**53 for x in np.asarray(raw)]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "hot"),
        ("temperature", True),
        ("top_k", -1),
        ("top_k", 1.5),
        ("top_p", 1.01),
        ("top_p", -0.01),
        ("min_p", 2),
        ("min_p", math.nan),
        ("repetition_penalty", 0),
        ("repetition_penalty", math.inf),
        ("presence_penalty", math.nan),
        ("frequency_penalty", math.inf),
        ("frequency_penalty", None),
        ("repeat_last_n", -2),
        ("seed", -1),
        ("seed", 1.0),
        ("logprobs", -1),
        ("logprobs", True),
        ("logit_bias", [1, 2]),
        ("logit_bias", {"1": 2.0}),
        ("logit_bias", {-1: 2.0}),
        ("logit_bias", {1: math.nan}),
        ("logit_bias", {1: math.inf}),
        ("logit_bias", {1: "a"}),
    ],
)
def test_a_bad_value_is_named(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{field}") as info:
        Sampling(**{field: value})  # type: ignore[arg-type]
    assert info.value.field == field
    assert isinstance(info.value, H2OError)
    assert isinstance(info.value, ValueError)


def test_values_become_plain_ones() -> None:
    bias = {np.int64(3): np.float32(1.5)}
    s = Sampling(temperature=np.float32(0.5), top_k=np.int32(4), logit_bias=bias)  # type: ignore[arg-type,dict-item]
    assert json.loads(json.dumps(dataclasses.asdict(s)))["logit_bias"] == {"3": 1.5}
    assert s == Sampling(temperature=0.5, top_k=4, logit_bias={3: 1.5})
    assert hash(s) == hash(Sampling(temperature=0.5, top_k=4))
    assert dataclasses.replace(s, top_k=0).logit_bias == {3: 1.5}


def test_bad_logits_are_refused() -> None:
    sampler = Sampler(Sampling(), 4)
    with pytest.raises(BackendError, match="NaN, first at token id 2"):
        sampler.sample(np.array([0, 1, np.nan, np.inf], np.float32))
    with pytest.raises(BackendError, match=r"\+inf, first at token id 3"):
        sampler.sample(np.array([0, 1, 2, np.inf], np.float32))
    with pytest.raises(BackendError, match="nothing but -inf"):
        sampler.sample(np.full(4, -np.inf, np.float32))
    with pytest.raises(BackendError, match=r"shape \[1, 4\] where \[4\]"):
        sampler.sample(np.zeros((1, 4), np.float32))


def test_settings_that_leave_no_token_are_refused() -> None:
    logits = np.zeros(2, np.float32) + 1
    everything = Sampler(Sampling(logit_bias={0: -math.inf, 1: -math.inf}), 2)
    with pytest.raises(ConfigError, match="logit_bias leaves no token"):
        everything.sample(logits)
    overflow = Sampler(Sampling(repetition_penalty=1e-300), 2)
    overflow.accept(0)
    with pytest.raises(ConfigError, match="repetition_penalty leaves no token"):
        overflow.sample(logits)


def test_ids_outside_the_vocabulary_are_refused() -> None:
    with pytest.raises(ConfigError, match="logit_bias has the key 9"):
        Sampler(Sampling(logit_bias={9: 1.0}), 9)
    with pytest.raises(ConfigError, match="vocab_size"):
        Sampler(Sampling(), 0)
    for token in (-1, 9):
        with pytest.raises(UnknownTokenError, match=f"token id {token} is outside") as info:
            Sampler(Sampling(), 9).accept(token)
        copy = pickle.loads(pickle.dumps(info.value))
        assert (copy.token, copy.vocab_size, str(copy)) == (token, 9, str(info.value))
