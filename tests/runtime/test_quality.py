"""What a quality stands for, and what contradicts it."""

from __future__ import annotations

import pytest
from h2o_runtime.config.quality import configured
from tests.prefill import altered

from h2o_runtime.errors import ConfigError
from h2o_runtime.policies.prefill import ColumnSum, Query

CLASSIC = ColumnSum(local=256, heavy=256, dense_tail=7)


def test_it_overrides_what_was_configured_and_leaves_the_rest() -> None:
    assert configured(CLASSIC, {}, None) == CLASSIC
    assert configured(CLASSIC, {}, "balanced") == Query(dense_tail=7)
    assert configured(CLASSIC, {"sink": 2, "heavy": 448}, "balanced") == Query(dense_tail=7)
    fast = Query(chunk_size=512, heavy=192, grow="never", dense_tail=7)
    assert configured(CLASSIC, {}, "fast") == fast
    assert configured(CLASSIC, {}, "guarded") == Query(missed=0.0025, dense_tail=7)
    assert configured(CLASSIC, {}, "exact") == altered(CLASSIC, policy="full")


@pytest.mark.parametrize(
    ("quality", "name", "value"),
    [("exact", "policy", "h2o"), ("fast", "chunk_size", 1024), ("balanced", "heavy", "auto")],
)
def test_a_setting_that_contradicts_is_named(quality: str, name: str, value: object) -> None:
    says = f"`quality={quality}` sets `{name}=.*`, but `{name}={value}` was given too"
    with pytest.raises(ConfigError, match=says) as caught:
        configured(Query(), {name: value}, quality)  # type: ignore[arg-type]
    assert caught.value.field == name
