"""What a quality stands for, and what contradicts it."""

from __future__ import annotations

import pytest

from h2o_runtime import PrefillConfig
from h2o_runtime.config.quality import configured
from h2o_runtime.errors import ConfigError

CLASSIC = PrefillConfig(score="colsum", local=256, heavy=256, dense_tail=7)


def test_it_overrides_what_was_configured_and_leaves_the_rest() -> None:
    assert configured(CLASSIC, {}, None) == CLASSIC
    assert configured(CLASSIC, {}, "balanced") == PrefillConfig(dense_tail=7)
    assert configured(CLASSIC, {"sink": 2, "heavy": 448}, "balanced") == PrefillConfig(sink=2, dense_tail=7)
    fast = PrefillConfig(chunk_size=512, heavy=192, score_grow="never", dense_tail=7)
    assert configured(CLASSIC, {}, "fast") == fast
    assert configured(CLASSIC, {}, "guarded") == PrefillConfig(score_missed=0.0025, dense_tail=7)
    assert configured(CLASSIC, {}, "exact") == CLASSIC.altered(policy="full")


@pytest.mark.parametrize(
    ("quality", "name", "value"),
    [("exact", "policy", "h2o"), ("fast", "chunk_size", 1024), ("balanced", "heavy", "auto")],
)
def test_a_setting_that_contradicts_is_named(quality: str, name: str, value: object) -> None:
    says = f"`quality={quality}` sets `{name}=.*`, but `{name}={value}` was given too"
    with pytest.raises(ConfigError, match=says) as caught:
        configured(PrefillConfig(), {name: value}, quality)  # type: ignore[arg-type]
    assert caught.value.field == name
