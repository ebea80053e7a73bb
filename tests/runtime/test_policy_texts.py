"""Policies and caches as texts and as settings: what is written is read back, and what is wrong is explained."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, ClassVar, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from h2o_runtime.caches import CACHES, Contiguous, Evicting, Offload
from h2o_runtime.components.options import Option, effective_options, option, options_of, spelled
from h2o_runtime.components.registry import Registry
from h2o_runtime.errors import ConfigError
from h2o_runtime.policies.decode import DECODE, FullDecode, Quest, SubquadraticDecode
from h2o_runtime.policies.prefill import (
    PREFILL,
    ColumnSum,
    Full,
    PrefillPolicy,
    Query,
    Subquadratic,
    VerticalSlash,
    Window,
)
from h2o_runtime.policies.prefill.h2o import H2O, SCORES
from h2o_runtime.policies.prefill.h2o.policy import score_rule

REGISTRIES: dict[str, Registry[Any]] = {"prefill": PREFILL, "decode": DECODE, "cache": CACHES}
KINDS = [(name, kind) for name, registry in REGISTRIES.items() for kind in registry.kinds]
every_kind = pytest.mark.parametrize(
    ("name", "kind"), KINDS, ids=[f"{name}-{kind.__name__}" for name, kind in KINDS]
)

some = settings(max_examples=9, deadline=None)


# --- What is written is read back -------------------------------------------------------------------------


def values_of(one: Option) -> st.SearchStrategy[Any]:
    """Any value of an option, in range by itself."""
    if one.choices:
        return st.sampled_from(one.choices)
    if one.type is bool:
        return st.booleans()
    if one.number is float:
        return st.floats(one.least or 0, 1)
    if one.number is int:
        numbers = st.integers(one.least or 0, 5000)
        return st.one_of(numbers, st.sampled_from(one.words)) if one.words else numbers
    return st.text(st.characters(exclude_categories=("Cs", "Cc")))


@st.composite
def made(draw: st.DrawFn, kind: type[Any]) -> Any:
    """A value of the class: settings that contradict the others keep their defaults."""
    value = kind()
    for one in options_of(kind):
        try:
            value = replace(value, **{one.name: draw(values_of(one))})
        except ConfigError:
            continue
    return value


def canonical(value: Any) -> Any:
    """The value with the defaults of those settings that change nothing."""
    effective = {one.name: getattr(value, one.name) for one in effective_options(value)}
    return type(value)(**effective)


@every_kind
@some
@given(data=st.data())
def test_a_value_is_read_back_from_its_text(name: str, kind: type[Any], data: st.DataObject) -> None:
    value, registry = data.draw(made(kind)), REGISTRIES[name]
    for text in (spelled(value), str(value), spelled(canonical(value))):
        assert registry.read(text) == canonical(value)
    assert spelled(registry.read(spelled(value))) == spelled(value)


@every_kind
@some
@given(data=st.data())
def test_a_value_is_made_of_its_settings(name: str, kind: type[Any], data: st.DataObject) -> None:
    value, registry = data.draw(made(kind)), REGISTRIES[name]
    found = registry.settings_of(value)
    assert registry.make(found) == canonical(value)
    assert registry.settings_of(canonical(value)) == found
    assert next(iter(found)) == registry.field


@every_kind
@some
@given(data=st.data())
def test_any_change_of_a_value_keeps_its_other_settings(
    name: str, kind: type[Any], data: st.DataObject
) -> None:
    value, other = data.draw(made(kind)), data.draw(made(kind))
    registry = REGISTRIES[name]
    own = [one for one in effective_options(other) if not one.fixed]
    if not own:
        return  # nothing to change
    one = data.draw(st.sampled_from(own))
    try:
        expected = replace(value, **{one.name: getattr(other, one.name)})
    except ConfigError:
        expected = None
    if expected is None or one not in effective_options(expected):
        with pytest.raises(ConfigError):
            registry.make({one.name: getattr(other, one.name)}, value)
    else:
        assert registry.make({one.name: getattr(other, one.name)}, value) == expected


def test_every_field_without_a_default_in_python_is_an_option() -> None:
    """Or a value would have something that its text does not tell."""
    for _, kind in KINDS:
        assert {one.name for one in options_of(kind)} == {one.name for one in fields(kind)}
        assert all(one.default is not MISSING for one in fields(kind))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Query(), "h2o score=query"),
        (
            Query(heavy=192, grow="never", chunk_size=512),
            "h2o score=query chunk_size=512 heavy=192 grow=never",
        ),
        (ColumnSum(), "h2o score=colsum"),
        (Full(), "full"),
        (VerticalSlash(fraction=0.25, vertical=9), "minference fraction=0.25"),
        (Query(missed=0.0012345678), "h2o score=query missed=0.0012345678"),
        (Subquadratic(block=0, log_stride=False), "subquadratic log_stride=false block=0"),
        (SubquadraticDecode(count_bias=True), "subquadratic count_bias=true"),
        (Contiguous(rows="int8"), "contiguous rows=int8"),
        (Offload(file="/tmp/my rows"), "offload file='/tmp/my rows'"),
        (Evicting(tokens=100, recent=7), "evicting tokens=100 recent=7"),
    ],
)
def test_a_value_is_spelled_by_what_is_no_default(value: Any, text: str) -> None:
    assert str(value) == text


def test_whole_texts_tell_defaults_too() -> None:
    assert spelled(Quest(), whole=True) == "quest budget=1024 page=16 dense_layers=2 heads=query"
    assert spelled(Full(), whole=True) == "full batch_size=4096"


# --- What people write ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "base", "value"),
    [
        ("h2o", None, Query()),
        ("h2o heavy=192", None, Query(heavy=192)),
        ("h2o dense-tail=7  heavy=192", Query(local=3), Query(dense_tail=7, heavy=192)),
        ("subquadratic log_stride=OFF", None, Subquadratic(log_stride=False)),
        # Settings alone change what there is.
        ("heavy=192", None, Query(heavy=192)),
        ("heavy=192", Window(local=80, window=70), Window(local=80, window=70, heavy=192)),
        ("score=window", Query(heavy=192, tile=7, heads="kv"), Window(heavy=192, heads="kv")),
        ("fraction=0.5", VerticalSlash(vertical=9), VerticalSlash(vertical=9, fraction=0.5)),
        # Presets are values, and can be changed as they are named.
        ("guarded", Window(heavy=3), Query(missed=0.0025)),
        ("guarded heavy=200 score=query", None, Query(missed=0.0025, heavy=200)),
    ],
)
def test_a_text_is_a_value(text: str, base: PrefillPolicy[Any] | None, value: PrefillPolicy[Any]) -> None:
    assert PREFILL.read(text, base) == value


@pytest.mark.parametrize(
    ("text", "field", "says"),
    [
        (" ", "policy", "policy is empty: write a policy as NAME SETTING=VALUE"),
        (
            "fats",
            "policy",
            f"policy must be one of {', '.join((*PREFILL.names, *PREFILL.presets))}, but is 'fats'",
        ),
        (
            "h2o heavy",
            "policy",
            "'heavy' is no setting: write a policy as NAME SETTING=VALUE …, such as 'h2o sc",
        ),
        ("h2o =3", "policy", "'=3' is no setting"),
        ("h2o 'heavy=3", "policy", "cannot be read: No closing quotation"),
        ("h2o heavy=3 heavy=4", "heavy", "heavy is given twice: write it once"),
        ("h2o policy=full", "policy", "policy is given twice"),
        ("h2o heavy=many", "heavy", "heavy must be an integer, but is 'many'"),
        ("h2o missed=few", "missed", "missed must be a number, but is 'few'"),
        ("h2o grow=seldom", "grow", "grow must be an integer or never, but is 'seldom'"),
        ("h2o score=windw", "score", f"score must be one of {', '.join(SCORES.names)}, but is 'windw'"),
        ("subquadratic log_stride=7", "log_stride", "log_stride must be true or false, but is '7'"),
        (
            "h2o chunksize=64",
            "chunksize",
            "h2o score=query has no setting chunksize: did you mean chunk_size?",
        ),
        ("full xyz=1", "xyz", "full has no setting xyz: it has batch_size"),
        (
            "h2o window=8",
            "window",
            "h2o score=query has no window: it belongs to h2o score=window and subquadratic",
        ),
        (
            "full score=window",
            "score",
            "full has no score: it belongs to h2o score=query and h2o score=colsum",
        ),
        ("guarded score=window", "score", "score must be one of query, but is 'window'"),
        (
            "minference vertical=9 fraction=0.5",
            "vertical",
            "vertical has no effect beside fraction=0.5: leave",
        ),
        (
            "subquadratic block=0 count_bias=true",
            "count_bias",
            "count_bias needs block, which is 0: leave it",
        ),
    ],
)
def test_a_text_that_is_wrong_says_what_to_write(text: str, field: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        PREFILL.read(text)
    assert says in str(caught.value)
    assert caught.value.field == field


def test_settings_of_another_policy_do_not_change_a_base() -> None:
    with pytest.raises(ConfigError, match="full has no heavy"):
        PREFILL.read("heavy=3", Full())
    with pytest.raises(ConfigError, match="h2o score=colsum has no tile: it belongs to h2o score=query"):
        PREFILL.make({"tile": 3}, ColumnSum())


@given(text=st.text(st.sampled_from("h2o full=score window'\"=-_ 019.é\\")))
def test_any_text_is_a_value_or_one_sentence(text: str) -> None:
    for registry in REGISTRIES.values():
        with suppress(ConfigError):
            assert registry.read(text) is not None


# --- Members of families, presets, and classes that are not registered ------------------------------------


def test_a_family_stands_for_its_members() -> None:
    members: Registry[Any] = Registry(Query, Window, base=H2O, field="score", group="none", name="score")
    registry: Registry[Any] = Registry(
        H2O, Full, base=PrefillPolicy, families={H2O: members}, field="policy", group="none"
    )
    assert registry.kinds == (Query, Window, Full)
    assert registry.names == ("h2o", "full")
    assert registry.presets == {"guarded": Query}


def test_a_preset_is_of_its_class_alone() -> None:
    """A rule that is derived from one with presets is not what they stand for."""

    @dataclass(frozen=True)
    class Derived(Query):
        score: Literal["derived"] = score_rule("derived")  # type: ignore[assignment]

    registry: Registry[Any] = Registry(Query, Derived, base=Query, field="score", group="none", name="score")
    assert registry.presets == {"guarded": Query}


def test_a_class_that_is_not_registered_is_changed_and_spelled() -> None:
    @dataclass(frozen=True)
    class Baseline(FullDecode):
        name: ClassVar[str] = "baseline"
        rows: int = option(4, "Rows.")

    value = DECODE.make({"rows": 5}, Baseline())
    assert value == Baseline(rows=5)
    assert str(value) == "baseline rows=5"
    assert DECODE.read("rows=6", value) == Baseline(rows=6)
