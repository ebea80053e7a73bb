"""How a prompt is prefilled: a policy by its name, and the settings of all policies that there are."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, make_dataclass
from functools import cache
from typing import Any

from h2o_runtime.errors import ConfigError
from h2o_runtime.options import Option, options_of
from h2o_runtime.policies.prefill import PREFILL, PrefillPolicy


def _policy_option() -> Option:
    first, *_ = PREFILL.names
    return Option(
        name="policy",
        type=str,
        default=first,
        meaning="How the prompt is read: " + ", ".join(f"{one.name} ({one.title})" for one in PREFILL) + ".",
        label="Attention",
        symbol="",
        flags=("--prefill",),
        choices=PREFILL.names,
        least=None,
        numeric=True,
    )


@cache
def prefill_options() -> tuple[Option, ...]:
    """`policy`, then the options of every registered policy. Policies share those with the same name.

    Raises ConfigError where two policies mean different things by one name.
    """
    found: dict[str, Option] = {"policy": _policy_option()}
    for policy in PREFILL:
        for one in options_of(policy):
            if found.setdefault(one.name, one) != one:
                raise ConfigError(
                    f"the policy {policy.name} and another one mean different things by {one.name!r}",
                    field=one.name,
                )
    return tuple(found.values())


_Settings: Any = make_dataclass(
    "_Settings",
    [(one.name, one.type, field(default=one.default)) for one in prefill_options()],
    frozen=True,
)


@dataclass(frozen=True)
class PrefillConfig(_Settings):  # type: ignore[misc]
    """Configuration of a prefill. Raises ConfigError for values that contradict.

    `policy` is a name in `PREFILL`; the other fields are those of the registered policies, of which each reads
    its own. Settings of policies that were not chosen are kept, and checked one by one only.
    """

    def __post_init__(self) -> None:
        for one in prefill_options():
            one.check(getattr(self, one.name))
        chosen = PREFILL[self.policy]
        settings = {one.name: getattr(self, one.name) for one in options_of(chosen)}
        object.__setattr__(self, "_algorithm", chosen(**settings))

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
        options = [one for one in options_of(PREFILL[self.policy]) if one.symbol]
        return " ".join(f"{one.symbol}={getattr(self, one.name)}" for one in options)
