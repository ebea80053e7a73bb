"""Speed against quality as one word, over settings that measurements chose: see docs/quality.md."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, get_args

from h2o_runtime.config import PrefillConfig
from h2o_runtime.errors import ConfigError

Quality = Literal["fast", "balanced", "exact"]
QUALITIES: Final[tuple[Quality, ...]] = get_args(Quality)
MEANING: Final = "Speed against quality in one word, in the place of the settings that it stands for."

_OWN_QUERIES: Final = {"policy": "h2o", "score": "query", "score_tile": 128, "score_queries": 32, "local": 64}
_SETTINGS: Final[Mapping[Quality, Mapping[str, Any]]] = MappingProxyType(
    {
        "fast": _OWN_QUERIES | {"chunk_size": 512, "heavy": 192},
        "balanced": _OWN_QUERIES | {"chunk_size": 1024, "heavy": 448},
        "exact": {"policy": "full"},
    }
)


def stands_for(quality: Quality) -> Mapping[str, Any]:
    """Settings of a `PrefillConfig`, the policy among them."""
    return _SETTINGS[quality]


def configured(base: PrefillConfig, given: Mapping[str, Any], quality: Quality | None) -> PrefillConfig:
    """`base`, overridden by what a quality stands for and by the settings that were given.

    Raises ConfigError where the two contradict, or the result contradicts itself.
    """
    settings = {} if quality is None else _SETTINGS[quality]
    for name, value in settings.items():
        if given.get(name, value) != value:
            raise ConfigError(
                f"quality {quality} stands for {name}={value}, and {name}={given[name]} was given: leave out one "
                "of the two",
                field=name,
            )
    return base.altered(**settings, **{name: value for name, value in given.items() if name not in settings})
