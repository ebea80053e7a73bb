"""Speed against quality as one word, from the policies' presets: see docs/quality.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from h2o_runtime.config.prefill import PrefillConfig
from h2o_runtime.errors import ConfigError
from h2o_runtime.names import Quality
from h2o_runtime.policies.prefill import PREFILL

MEANING: Final = (
    "A preset of several settings. guarded: a chunk that misses too much attention sees its whole past; exact: "
    "full attention."
)


def stands_for(quality: Quality) -> Mapping[str, Any]:
    """The preset's settings for `PrefillConfig`, including the policy: from the first policy with such a
    preset.
    """
    kind = next(kind for kind in PREFILL.kinds if quality in kind.presets)
    return {"policy": kind.name} | dict(kind.presets[quality])


def configured(base: PrefillConfig, given: Mapping[str, Any], quality: Quality | None) -> PrefillConfig:
    """`base`, overridden by the preset of `quality` and by the given settings.

    Raises ConfigError if the two contradict, or if the result contradicts itself.
    """
    settings = {} if quality is None else stands_for(quality)
    for name, value in settings.items():
        if given.get(name, value) != value:
            raise ConfigError(
                f"`quality={quality}` sets `{name}={value}`, but `{name}={given[name]}` was given too: leave out "
                "one of the two",
                field=name,
            )
    return base.altered(**{**given, **settings})
