"""Policies and caches are values: defaults are sound, and every contradiction names the setting to change."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.prefill import prefill_of

from h2o_runtime.caches import Evicting, Offload
from h2o_runtime.components.options import Configuration, option, options_of
from h2o_runtime.errors import ConfigError, H2OError
from h2o_runtime.policies.prefill import PREFILL, Query, Window
from h2o_runtime.policies.prefill.h2o import H2O


def test_defaults_are_those_of_the_design() -> None:
    assert PREFILL.settings_of(Query()) == {
        "policy": "h2o",
        "score": "query",
        "chunk_size": 1024,
        "batch_size": 4096,
        "local": 64,
        "heavy": 448,
        "heads": "auto",
        "dense_tail": 128,
        "tile": 64,
        "queries": 64,
        "late_queries": 8,
        "candidates": 2560,
        "grow": 4096,
        "dense_start": 0,
        "checks": 2,
        "missed": 1.0,
        "rule": 1,
    }
    assert Query().memory_at(0) == 512


def test_a_policy_is_a_value() -> None:
    policy = Query(heavy=9)
    assert Query() == Query() != policy
    assert len({Query(), Query(), policy}) == 2
    assert copy.deepcopy(policy) == pickle.loads(pickle.dumps(policy)) == policy
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.heavy = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("values", "field", "says"),
    [
        ({"policy": "sparse"}, "policy", "one of h2o, full, .*, guarded, but is"),
        ({"policy": ["h2o"]}, "policy", "one of h2o, full"),
        ({"score": "sum"}, "score", "one of query, colsum, window"),
        ({"heads": "both"}, "heads", "one of auto, kv, query"),
        ({"chunk_size": 1}, "chunk_size", "at least 2"),
        ({"batch_size": 0}, "batch_size", "at least 1"),
        ({"batch_size": 1 << 31}, "batch_size", "at most 2147483647"),
        ({"local": 576}, "heavy", "448 = 1024, which must be below chunk_size"),
        ({"heavy": 2000}, "heavy", "lower one of them or raise the chunk size"),
        ({"batch_size": 1023}, "chunk_size", "must not exceed batch_size"),
        ({"score": "window", "window": 0}, "window", "at least 1"),
        ({"score": "window", "window": 65}, "window", r"must be at most local \(64\)"),
        ({"grow": "seldom"}, "grow", "an integer or never, but is 'seldom'"),
        ({"grow": -1}, "grow", "at least 0"),
        ({"missed": float("nan")}, "missed", "a number of at least 0"),
        ({"missed": 10**400}, "missed", "a number of at least 0"),  # which no float holds
        ({"missed": "0.1"}, "missed", "must be a number, but is '0.1'"),
        ({"chunk_size": 1024.0}, "chunk_size", "must be an integer"),
        ({"local": "256"}, "local", "must be an integer"),
        ({"heavy": True}, "heavy", "must be an integer"),
        ({"policy": "subquadratic", "log_stride": 1}, "log_stride", "must be true or false"),
    ],
)
def test_a_contradiction_is_refused_and_names_its_setting(
    values: dict[str, Any], field: str, says: str
) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        prefill_of(**values)
    assert caught.value.field == field
    assert field in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, H2OError)


sizes = st.integers(-3, 40)


@given(
    values=st.fixed_dictionaries(
        dict.fromkeys(("chunk_size", "batch_size", "local", "heavy", "dense_tail"), sizes)
    ),
    window=st.none() | sizes,
)
def test_a_policy_exists_exactly_when_its_sizes_agree(values: dict[str, int], window: int | None) -> None:
    v = values
    sound = (
        v["local"] >= 1
        and v["heavy"] >= 0
        and v["dense_tail"] >= 0
        and v["local"] + v["heavy"] < v["chunk_size"] <= v["batch_size"]
        and (window is None or 1 <= window <= v["local"])
    )

    def make() -> H2O[Any]:
        return Query(**v) if window is None else Window(**v, window=window)

    if sound:
        assert make().memory_at(0) == v["local"] + v["heavy"]
    else:
        with pytest.raises(ConfigError) as caught:
            make()
        assert caught.value.field in {*v, "window"}


def test_numbers_may_stand_beside_words_that_are_the_default() -> None:
    (recent,) = (one for one in options_of(Evicting) if one.name == "recent")
    assert (recent.parse("half"), recent.parse("7")) == ("half", 7)
    assert Evicting(tokens=100, recent=7).rule.recent == 7
    assert Evicting(tokens=100).rule.recent == 50
    for wrong in ("7", "most", 1.5):
        with pytest.raises(ConfigError, match="recent must be an integer or half, but is"):
            Evicting(recent=wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="recent must be at least 0"):
        Evicting(recent=-1)


def test_a_text_is_a_text() -> None:
    with pytest.raises(ConfigError, match="file must be a text, but is 7"):
        Offload(file=7)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Made(Configuration):
    count: int = option(3, "A number.", least=1)
    share: float = option(0.5, "Another number.")
    many: int | Literal["all"] = option("all", "A number or a word.")
    on: bool = option(False, "A truth value.", label="On or off")
    kind: Literal["one", "other"] = option("one", "A choice.", needs="on")
    path: str = option("", "A text.", without="count")
    no_option: int = 0


def test_what_an_option_knows() -> None:
    found = {one.name: one for one in options_of(Made)}
    assert list(found) == ["count", "share", "many", "on", "kind", "path"]
    assert [one.number for one in found.values()] == [int, float, int, None, None, None]
    assert (found["on"].label, found["many"].label) == ("On or off", "Many")
    assert (found["kind"].choices, found["many"].words) == (("one", "other"), ("all",))
    texts = {"count": "7", "share": "1e-3", "many": "8", "on": "ON", "kind": "other", "path": "7"}
    made = Made(**{name: found[name].parse(text) for name, text in texts.items()})
    assert made == Made(count=7, share=0.001, many=8, on=True, kind="other", path="7")
    for name, says in (("count", "an integer"), ("share", "a number"), ("many", "an integer or all")):
        with pytest.raises(ConfigError, match=f"{name} must be {says}, but is 'x'"):
            found[name].parse("x")


def test_an_option_says_why_it_has_no_effect() -> None:
    found = {one.name: one for one in options_of(Made)}
    assert found["kind"].without_effect(Made()) == "needs on, which is false"
    assert found["kind"].without_effect(Made(on=True)) is None
    assert found["path"].without_effect(Made()) == "has no effect beside count=3"
    assert found["count"].without_effect(Made()) is None
