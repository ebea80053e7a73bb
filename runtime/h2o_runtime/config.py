"""How a prompt is prefilled: a policy by its name, and the settings of all policies that there are."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, make_dataclass
from typing import Any

from h2o_runtime.options import options_of
from h2o_runtime.policies.prefill import PREFILL, PrefillPolicy

_Settings: Any = make_dataclass(
    "_Settings",
    [(one.name, one.type, field(default=one.default)) for one in PREFILL.options],
    frozen=True,
)


@dataclass(frozen=True)
class PrefillConfig(_Settings):  # type: ignore[misc]
    """Configuration of a prefill. Raises ConfigError for values that contradict.

    `policy` is a name in `PREFILL`; the other fields are those of the registered policies, of which each reads
    its own. Settings of policies that were not chosen are kept, and checked one by one only.
    """

    def __post_init__(self) -> None:
        for one in PREFILL.options:
            one.check(getattr(self, one.name))
        object.__setattr__(self, "_algorithm", PREFILL.make(asdict(self)))

    @classmethod
    def of(cls, algorithm: PrefillPolicy[Any]) -> PrefillConfig:
        """The configuration of a policy that need not be registered, as those that evaluations compare with."""
        config = cls()
        for one in options_of(type(algorithm)):
            object.__setattr__(config, one.name, getattr(algorithm, one.name))
        object.__setattr__(config, "_algorithm", algorithm)
        return config

    @property
    def algorithm(self) -> PrefillPolicy[Any]:
        """The policy itself, with its settings."""
        policy: PrefillPolicy[Any] = self._algorithm
        return policy

    def __getattr__(self, name: str) -> Any:
        """What the chosen policy says beyond its settings, as `memory` of h2o."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._algorithm, name)

    def altered(self, **changes: Any) -> PrefillConfig:
        """With other settings. Raises ConfigError where they contradict."""
        return PrefillConfig(**(asdict(self) | changes))

    def in_short(self) -> str:
        """The chosen policy's settings in the few letters of a report."""
        options = [one for one in options_of(type(self.algorithm)) if one.symbol]
        return " ".join(f"{one.symbol}={getattr(self, one.name)}" for one in options)
