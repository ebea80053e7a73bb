"""How a prompt is prefilled: the chosen policy, and the settings of all policies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

from h2o_runtime.errors import ConfigError
from h2o_runtime.policies.prefill import PREFILL, PrefillPolicy


@dataclass(frozen=True, init=False, repr=False)
class PrefillConfig:
    """Configuration of a prefill. Raises ConfigError for values that contradict, and for unknown settings.

    algorithm  the chosen policy. Its fields have types: `PrefillConfig.of(Full(batch_size=512))` is
               `PrefillConfig(policy="full", batch_size=512)`, and type checkers and editors know its fields
    settings   every setting by its name: `policy`, which is a name in `PREFILL`, and the options of all
               registered policies. Those of policies that were not chosen are checked one by one only

    A setting can also be read as an attribute, as in `config.chunk_size`.
    """

    algorithm: PrefillPolicy[Any]
    _settings: dict[str, Any] = field(hash=False)

    def __init__(self, policy: str | None = None, **settings: Any) -> None:
        if policy is not None:
            settings["policy"] = policy
        known = {one.name: one for one in PREFILL.options}
        for name, value in settings.items():
            if name not in known:
                raise ConfigError(_lacks(name, known), field=name)
            known[name].check(value)
        complete = {name: one.default for name, one in known.items()} | settings
        self._fill(PREFILL.make(complete), complete)

    @classmethod
    def of(cls, algorithm: PrefillPolicy[Any]) -> PrefillConfig:
        """The configuration of a policy, registered or not: baselines of evaluations are not."""
        config = cls.__new__(cls)
        defaults = {one.name: one.default for one in PREFILL.options}
        config._fill(algorithm, defaults | PREFILL.settings_of(algorithm))
        return config

    def _fill(self, algorithm: PrefillPolicy[Any], settings: dict[str, Any]) -> None:
        object.__setattr__(self, "algorithm", algorithm)
        object.__setattr__(self, "_settings", settings)

    @property
    def settings(self) -> Mapping[str, Any]:
        return MappingProxyType(self._settings)

    def __getattr__(self, name: str) -> Any:
        """A setting. Raises AttributeError."""
        settings = self.__dict__.get("_settings", {})  # absent while an instance is created or copied
        if name in settings:
            return settings[name]
        raise AttributeError(_lacks(name, settings))

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._settings]

    def __repr__(self) -> str:
        own = PREFILL.settings_of(self.algorithm)
        return f"PrefillConfig({', '.join(f'{name}={value!r}' for name, value in own.items())})"

    def altered(self, **changes: Any) -> PrefillConfig:
        """With other settings. Raises ConfigError if they contradict."""
        return PrefillConfig(**(self._settings | changes))


def _lacks(name: str, known: Mapping[str, Any]) -> str:
    near = get_close_matches(name, known, n=1)
    return f"PrefillConfig has no {name!r}" + (f": did you mean {near[0]!r}?" if near else "")
