"""Which heads have a list of keys of their own, in models whose layers differ."""

from __future__ import annotations

import pytest
from tests.model_specs import grouped

from h2o_runtime.errors import ConfigError
from h2o_runtime.head_counts import HeadCounts
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.policies.prefill import Query

ALIKE, KEYS_DIFFER = grouped(14, 2, 2), grouped(8, 2, 4)
QUERIES_DIFFER = HeadCounts(query=frozenset({8, 16}), kv=frozenset({2}))


@pytest.mark.parametrize(
    ("model", "heads", "count"),
    [
        (ALIKE, "auto", 2),
        (ALIKE, "kv", 2),
        (ALIKE, "query", 14),
        (KEYS_DIFFER, "auto", 8),
        (KEYS_DIFFER, "query", 8),
    ],
)
def test_heads_with_their_own_memory(model: ModelSpec, heads: str, count: int) -> None:
    assert Query(heads=heads).set_count(model.head_counts) == count


def test_what_no_list_can_serve_is_refused() -> None:
    assert Query().set_count(QUERIES_DIFFER) == 2
    with pytest.raises(ConfigError, match=r"numbers of query heads \(8, 16\).*: use `policy=full`"):
        Query(heads="query").set_count(QUERIES_DIFFER)
    with pytest.raises(ConfigError, match=r"of kv heads \(2, 4\).* heads=query, or use `policy=full`"):
        Query(heads="kv").set_count(KEYS_DIFFER.head_counts)
