"""Which queries vote, and for which rows: each query attends to one key alone, so votes can be counted by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from h2o_plugins import cpu_kernels
from h2o_runtime.attention.provider import AttentionProvider, AttentionShape
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.kv import KV
from h2o_runtime.operators import BLOCK_SELECT, QUERY_SELECT
from h2o_runtime.policies.prefill import Query
from h2o_runtime.providers.functions import FunctionProvider

Array = NDArray[Any]
D = 128
ONLY = 6 * np.eye(D, dtype=np.float32)  # the key that a query attends to is the query; its share is 1 - 1e-13
pytestmark = pytest.mark.parametrize("attention", ["native", "functions"])


def provider_of(attention: str, bundle: Path, query_heads: int) -> AttentionProvider:
    provider: AttentionProvider = FunctionProvider(Bundle.open(bundle), 1)
    if attention == "native":
        if cpu_kernels() is None:
            pytest.skip("the native kernels are not built")
        from h2o_runtime.providers.native import NativeCpuProvider

        provider = NativeCpuProvider(1)
    provider.activate(AttentionShape(query_heads, 1, D, 1.0, np.dtype(np.float32)))
    return provider


def chosen(
    provider: AttentionProvider,
    queries: Array,
    keys: Array,
    candidates: Array,
    heavy: int,
    stride: int,
    reach: int = 0,
) -> list[list[int]]:
    """The sets of the query heads, or of all if there is one: of one tile whose own keys are zero. queries
    [n, heads, d]; keys [past, d]; candidates [Mp].
    """
    n, past = len(queries), len(keys)
    cache = np.concatenate([keys, np.zeros((n, D), np.float32)])[:, None]
    found = np.full((1, queries.shape[1], heavy), -1, np.int32)
    provider.run(
        QUERY_SELECT,
        KV(cache, cache, len(cache)),
        q=queries,
        candidates=candidates.astype(np.int32).reshape(1, 1, -1),
        past=np.array([past]),
        first=np.array([past]),
        tile=n,
        stride=stride,
        reach=reach,
        local=0,
        memory_next=found,
    )
    sets: list[list[int]] = found[0].tolist()
    return sets


def test_a_whole_tile_has_at_least_as_many_voters_as_queries(attention: str, tiny_bundle: Path) -> None:
    """125 rows / 32 queries is 3.9, so one of every 3 queries votes: numbers 0, 3, …, 123."""
    policy = Query(chunk_size=1000)
    provider = provider_of(attention, tiny_bundle, query_heads=1)
    stride = policy.stride_at(0)
    assert (policy.tile_rows, policy.queries) == (125, 32)
    voters = chosen(provider, ONLY[:125, None], ONLY, np.array([]), heavy=42, stride=stride)
    assert voters == [list(range(0, 125, 3))]


def test_under_heads_query_other_queries_narrow_than_vote(attention: str, tiny_bundle: Path) -> None:
    """One of 4 queries votes. The second head of a list narrows with queries 2, 6, …, and votes with 0, 4, …"""
    provider, block = provider_of(attention, tiny_bundle, query_heads=2), 8
    queries = ONLY[1:17, None].repeat(
        2, axis=1
    )  # number r attends to block r + 1; block 0 is always a candidate
    keys = ONLY[:17].repeat(block, axis=0)
    candidates = np.full((1, 1, 9 * block), -1, np.int32)
    provider.run(
        BLOCK_SELECT,
        KV(keys[:, None], keys[:, None], len(keys)),
        q=queries,
        past=np.array([len(keys)]),
        tile=16,
        stride=4,
        block_size=block,
        local=0,
        candidates=candidates,
    )
    assert (candidates[0, 0, ::block] // block).tolist() == [0, 1, 3, 5, 7, 9, 11, 13, 15]
    sets = chosen(provider, queries, keys, candidates, heavy=4 * block, stride=4)
    for rows in sets:
        assert [row // block for row in rows[::block]] == [1, 5, 9, 13]


@pytest.mark.parametrize(
    ("attended", "expected"),
    [
        ([8], [8, 10]),  # 10 is two rows behind 8, while 0, 1 and 30 are near it in the list alone
        ([0, 9, 9], [0, 1]),  # 9 is no candidate: it has no votes, and a quarter of nothing goes to 8 and 10
    ],
)
def test_neighbours_are_rows_of_the_past(
    attention: str, tiny_bundle: Path, attended: list[int], expected: list[int]
) -> None:
    provider = provider_of(attention, tiny_bundle, query_heads=1)
    candidates = np.array([0, 1, 8, 10, 30, 60])
    sets = chosen(provider, ONLY[attended, None], ONLY[:64], candidates, heavy=2, stride=1, reach=2)
    assert sets == [expected]
