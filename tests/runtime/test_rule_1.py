"""Rule 1 is frozen: what the default rule chooses, in numbers that stand here, and sets beside float64.

Another number here is another rule: raise `rule`, and measure it as docs/quality.md measures this one.
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.reference import choices, operators
from tests.runtime.test_policy_h2o_seen import KV_HEADS, D, Run

from h2o_runtime.policies.prefill import Query, policy_on_device

LAYERS = 24


def test_what_it_says_of_itself() -> None:
    rule = Query()
    assert (rule.rule, rule.chunk_size, rule.tile_rows, rule.local, rule.dense_tail) == (1, 1024, 64, 64, 128)
    assert [rule.stride_in(layer, LAYERS) for layer in range(LAYERS)] == [1] * 12 + [8] * 12
    there = policy_on_device(rule, "cuda")
    assert isinstance(there, Query)
    assert (there.dense_end, {there.stride_in(layer, LAYERS) for layer in range(LAYERS)}) == (4096, {8})


@pytest.mark.parametrize(
    ("past", "keys", "candidates"),
    [
        (1024, 512, 0),
        (3072, 512, 0),
        (4096, 1024, 0),
        (5120, 1280, 0),
        (8192, 1920, 0),
        (22528, 1920, 0),
        (23552, 1920, 15360),
        (130048, 1920, 15360),
    ],
)
def test_sizes_follow_the_position(past: int, keys: int, candidates: int) -> None:
    assert (Query().memory_at(past), Query().narrowed_to(past)) == (keys, candidates)


@pytest.mark.parametrize(("layer", "stride"), [(0, 1), (1, 8)])
def test_sets(layer: int, stride: int) -> None:
    run = Run(Query(), 8400, 7, layer=layer, layers=2)
    none = np.zeros((1, KV_HEADS, 0), np.int32)
    for past, keys in ((1024, 512), (4096, 1024), (5120, 1280), (8192, 1920)):
        (tile, *_) = run.policy.tiles(past, past + 64)
        where = run.policy.sets_of_tiles(0, 0, [tile], tile, KV_HEADS)
        q, rule = run.q[past : past + 64], {"scale": D**-0.5, "stride": stride, "reach": stride // 2}
        (expected,) = choices.query_select(
            q, run.k, none, np.array([past]), np.array([past]), tile=64, local=64, heavy=keys - 64,
            score_heads=KV_HEADS, **rule,
        )  # fmt: skip
        score = choices.query_score(q, run.k, none[0], past, past, **rule)
        assert operators.same_but_for_near_ties(
            expected, run.state.sets(layer, where)[0], score, stop=past, local=64, rtol=1e-4
        )
