"""PrefillConfig: its defaults are sound, and every contradiction is named with the field to change."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.prefill import altered, prefill_of

from h2o_runtime.errors import ConfigError, H2OError
from h2o_runtime.policies.prefill import PREFILL, Full, Query
from h2o_runtime.policies.prefill.full import Full


def test_defaults_are_those_of_the_design() -> None:
    assert Query().settings == {
        "policy": "h2o",
        "chunk_size": 1024,
        "batch_size": 4096,
        "local": 64,
        "heavy": 448,
        "score": "query",
        "score_window": 64,
        "score_tile": 128,
        "score_queries": 32,
        "score_candidates": 2048,
        "score_grow": 4096,
        "score_checks": 2,
        "score_missed": 1.0,
        "score_heads": "auto",
        "sink": 0,
        "dense_tail": 128,
        "window": 128,
        "global_tokens": 1,
        "log_stride": True,
        "landmarks": True,
        "landmark_block": 64,
        "landmark_count_bias": False,
        "vertical": 512,
        "slash": 1024,
        "line_fraction": 0.0,
        "estimate": "chunk",
    }
    assert Query().algorithm.memory_at(0) == 512


def test_a_config_is_a_value() -> None:
    assert Query() == Query()
    assert len({Query(), Query(), Query()}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        Query().sink = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("values", "field", "says"),
    [
        ({"policy": "sparse"}, "policy", "one of h2o, full"),
        ({"score": "sum"}, "score", "one of query, colsum, window"),
        ({"score_heads": "both"}, "score_heads", "one of auto, kv, query"),
        ({"chunk_size": 1}, "chunk_size", "at least 2"),
        ({"chunk_size": 0}, "chunk_size", "at least 2"),
        ({"batch_size": 0}, "batch_size", "at least 1"),
        ({"batch_size": -1, "policy": "full"}, "batch_size", "at least 1"),
        ({"local": 0}, "local", "at least 1"),
        ({"heavy": -1}, "heavy", "at least 0"),
        ({"sink": -1}, "sink", "at least 0"),
        ({"dense_tail": -1}, "dense_tail", "at least 0"),
        ({"local": 576}, "heavy", "448 = 1024, which must be below `chunk_size`"),
        ({"heavy": 2000}, "heavy", "lower one of them or raise the chunk size"),
        ({"chunk_size": 512}, "heavy", "which must be below `chunk_size`"),
        ({"chunk_size": 8192}, "chunk_size", "must not exceed `batch_size`"),
        ({"batch_size": 1023}, "chunk_size", "must not exceed `batch_size`"),
        ({"sink": 449}, "sink", "must not exceed `heavy`"),
        ({"heavy": 0, "sink": 1}, "sink", "must not exceed `heavy`"),
        ({"score": "window", "score_window": 0}, "score_window", "from 1 to `local`"),
        ({"score": "window", "score_window": 65}, "score_window", "from 1 to `local`"),
        ({"chunk_size": 1024.0}, "chunk_size", "must be an integer"),
        ({"local": "256"}, "local", "must be an integer"),
        ({"heavy": True}, "heavy", "must be an integer"),
        ({"sink": None}, "sink", "must be an integer"),
    ],
)
def test_a_contradiction_is_refused_and_names_its_field(
    values: dict[str, Any], field: str, says: str
) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        prefill_of(**values)
    assert caught.value.field == field
    assert field in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, H2OError)


@pytest.mark.parametrize(
    "values",
    [
        {"chunk_size": 2, "local": 1, "heavy": 0},
        {"chunk_size": 513},
        {"batch_size": 1024},
        {"sink": 448},
        {"heavy": 0},
        {"dense_tail": 0},
        {"dense_tail": 1 << 30},
        {"score": "window", "score_window": 1},
        {"score": "window", "score_window": 64},
        {"score_window": 0},  # not asked for under query
        # A tile is at most its chunk, has at most all of its queries, and chooses among what it keeps at least.
        {"chunk_size": 48, "local": 8, "heavy": 8},
        {"score_tile": 7},
        {"score_queries": 9999, "score_candidates": 1},
        # Sizes of the sparse pattern are free where there is none.
        {"policy": "full", "chunk_size": 8192, "local": 9000, "sink": 9999},
        {"policy": "full", "batch_size": 1},
    ],
)
def test_the_edges_of_what_is_allowed(values: dict[str, Any]) -> None:
    config = prefill_of(**values)
    assert all(getattr(config, name) == value for name, value in values.items())


sizes = st.integers(-3, 40)


@given(
    st.fixed_dictionaries(
        dict.fromkeys(("chunk_size", "batch_size", "local", "heavy", "sink", "score_window"), sizes)
        | {"dense_tail": sizes, "score": st.sampled_from(["query", "colsum", "window"])}
    )
)
def test_a_config_exists_exactly_when_its_sizes_agree(values: dict[str, Any]) -> None:
    v = values
    sound = (
        v["local"] >= 1
        and v["heavy"] >= 0
        and v["dense_tail"] >= 0
        and 0 <= v["sink"] <= v["heavy"]
        and v["local"] + v["heavy"] < v["chunk_size"] <= v["batch_size"]
        and (v["score"] != "window" or 1 <= v["score_window"] <= v["local"])
    )
    if sound:
        assert prefill_of(**v).algorithm.memory_at(0) == v["local"] + v["heavy"]
    else:
        with pytest.raises(ConfigError) as caught:
            prefill_of(**v)
        assert caught.value.field in v


def test_a_setting_that_there_is_not_is_named_with_the_nearest_one() -> None:
    with pytest.raises(AttributeError, match="PrefillConfig has no 'chunksize': did you mean 'chunk_size'"):
        Query().chunksize  # noqa: B018
    with pytest.raises(ConfigError, match="PrefillConfig has no 'chunksize': did you mean 'chunk_size'"):
        Query(chunksize=64)
    with pytest.raises(ConfigError, match=r"PrefillConfig has no 'qqq'$"):
        altered(Query(), qqq=64)
    assert not hasattr(Query(), "qqq")


def test_a_policy_with_types_is_the_same_configuration() -> None:
    assert Full(batch_size=512) == Full(batch_size=512)
    config = Query(vertical=9)
    assert copy.deepcopy(config) == pickle.loads(pickle.dumps(config)) == config
    assert config == Query()


@pytest.mark.parametrize(
    ("given", "chosen", "says"),
    [
        (
            "score_tile",
            {"score": "colsum"},
            "--score-tile has no effect with --score colsum: it belongs to --score query",
        ),
        ("score_window", {}, "--score-window has no effect with --score query: it belongs to --score window"),
        (
            "score_tile",
            {"policy": "full"},
            "--score-tile has no effect with --prefill full: it belongs to --prefill h2o",
        ),
        (
            "score",
            {"policy": "full"},
            "--score has no effect with --prefill full: it belongs to --prefill h2o",
        ),
    ],
)
def test_a_setting_of_another_score_rule_is_refused(given: str, chosen: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        PREFILL.check_used([given], prefill_of(**chosen).algorithm)
    assert (str(caught.value), caught.value.field) == (says, given)
