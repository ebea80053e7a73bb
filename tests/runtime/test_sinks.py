"""Attention sinks: one score a head in the softmax of every row, whatever phases it is made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.bundles import export, random_ids, relative_error
from tests.family_models import VOCAB, WINDOWS, save
from tests.prefill import prefill_of

from h2o_runtime import Generator
from h2o_runtime.attention.sinks import add_sinks
from h2o_runtime.caches import Evicting, Paged
from h2o_runtime.errors import ConfigError
from h2o_runtime.policies.decode.quest import Quest
from h2o_runtime.policies.decode.subquadratic import SubquadraticDecode
from h2o_runtime.policies.prefill import Full, Query

FULL = Full(batch_size=64)
H2O = Query(chunk_size=32, batch_size=64, local=8, heavy=8, dense_tail=4)
IDS = random_ids(200, 3, VOCAB).tolist()


@given(
    n=st.integers(1, 5),
    keys=st.integers(0, 4),
    spread=st.sampled_from([1.0, 100.0]),
    half=st.booleans(),
    seed=st.integers(0, 1000),
)
@settings(max_examples=15, deadline=None)
def test_a_sink_is_a_key_without_a_value(n: int, keys: int, spread: float, half: bool, seed: int) -> None:
    """Also of rows that have seen no key, and of sinks far from all scores."""
    draw = np.random.default_rng(seed)
    scores, sinks = draw.standard_normal((n, 3, keys)) * spread, draw.standard_normal(3) * spread
    values = draw.standard_normal((keys, 3, 8))
    m = scores.max(axis=-1, initial=-np.inf)
    shifted = np.where(np.isinf(m), 0.0, m)
    weights = np.exp(scores - shifted[..., None])
    l = weights.sum(axis=-1)
    o = np.einsum("nhk,khd->nhd", weights, values) / np.where(l > 0, l, 1)[..., None]
    o = o.astype(np.float16 if half else np.float32)
    before, m, l = o.copy(), m.astype(np.float32), l.astype(np.float32)
    both = np.concatenate([scores, np.broadcast_to(sinks[None, :, None], (n, 3, 1))], axis=-1)
    top = both.max(axis=-1, keepdims=True)
    share = np.exp(both - top) / np.exp(both - top).sum(axis=-1, keepdims=True)
    add_sinks(o, m, l, sinks.astype(np.float32))
    expected = before.astype(np.float64) * share[..., :-1].sum(axis=-1)[..., None]
    assert np.abs(o - expected).max() <= (2e-3 if half else 2e-5) * max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(m, top[..., 0], rtol=1e-6)
    np.testing.assert_allclose(l, np.exp(both - top).sum(axis=-1), rtol=2e-5 * spread)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Layers 1 and 3 see everything, 0 and 2 a window."""
    folder = tmp_path_factory.mktemp("sinks")
    return export(save(folder / "checkpoint", "gpt_oss", WINDOWS), folder / "bundle")


def load(bundle: Path, **more: Any) -> Generator:
    return Generator.load(bundle, context=400, threads=1, **more)


def test_providers_and_caches_agree(bundle: Path) -> None:
    """In a prompt under either policy, and in the steps after it."""
    found: list[list[Any]] = []
    for more in ({}, {"attention": "functions"}, {"cache": Paged()}):
        with load(bundle, **more) as generator:
            logits = []
            for policy in (FULL, H2O):
                logits.append(generator.prefill(IDS[:150], policy, reuse=False).copy())
                logits += [generator.decode(token).copy() for token in IDS[150:154]]
            found.append(logits)
    for other in found[1:]:
        for ours, theirs in zip(found[0], other, strict=True):
            assert relative_error(theirs, ours) < 1e-4


def test_what_has_no_operators_with_sinks_is_refused(bundle: Path) -> None:
    with load(bundle) as generator:
        for name in ("subquadratic", "minference"):
            with pytest.raises(ConfigError, match=f"`policy={name}` has no operators with attention sinks"):
                generator.prefill(IDS, prefill_of(policy=name))
    for decoding in (Quest(), SubquadraticDecode()):
        with pytest.raises(ConfigError, match="has no operators with attention sinks"):
            load(bundle, decoding=decoding)
    with pytest.raises(ConfigError, match="use another cache"):
        load(bundle, cache=Evicting(tokens=100))
