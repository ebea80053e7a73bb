"""The contestants: full attention, the configured rule, rules with other settings, and baselines of its
budget.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from h2o_cli.eval.policies import BASELINES
from h2o_cli.policy_options import policies_beside
from h2o_runtime.caches.reuse import same_arithmetic
from h2o_runtime.components.options import Option, options_of, spelled
from h2o_runtime.errors import ConfigError
from h2o_runtime.policies.prefill import PREFILL, Full, PrefillPolicy


class Kind(str, Enum):
    TRUTH = "truth"  # full attention
    RULE = "rule"  # the configured one
    VARIANT = "variant"  # with other settings that the user requested
    ABLATION = "ablation"  # with one setting changed
    BASELINE = "baseline"


@dataclass(frozen=True)
class Contestant:
    """name is unique among those of a run."""

    name: str
    policy: PrefillPolicy[Any]
    kind: Kind

    @property
    def settings(self) -> str:
        """The whole policy, as commands take it."""
        return spelled(self.policy, whole=True)

    @property
    def numeric_settings(self) -> tuple[Any, ...]:
        """Everything that changes its results."""
        names = [option.name for option in options_of(type(self.policy)) if option.numeric]
        return self.policy.name, *(getattr(self.policy, name) for name in names)


def contestants(
    configured: PrefillPolicy[Any],
    beside: Sequence[str],
    baselines: Sequence[str],
    n: int,
    ablate: bool = False,
) -> tuple[Contestant, ...]:
    """Full attention first, then the configured rule.

    beside: policies, or settings that change the configured one. n: tokens of a prompt: a baseline has as many keys
    as the rule at its end. ablate: also whatever differs from the configured rule in one setting. Raises
    ConfigError for settings that contradict, and for policies that need not be named.
    """
    if configured.exact:
        raise ConfigError(
            f"{configured} has nothing to measure: full attention is what rules are compared with; name a rule by "
            "`prefill`"
        )
    rule = _contestant(configured, Kind.RULE)
    policies = policies_beside(beside, configured, same_arithmetic)
    budget = {"batch_size": configured.batch_size} | configured.budget(n)
    found = (
        _contestant(Full(batch_size=configured.batch_size), Kind.TRUTH),
        rule,
        *(_contestant(policy, Kind.VARIANT) for policy in policies),
        *(ablations(rule) if ablate else ()),
        *(
            Contestant(name, BASELINES.make({**budget, "baseline": name}), Kind.BASELINE)
            for name in baselines
        ),
    )
    distinct: dict[tuple[Any, ...], Contestant] = {}
    for contestant in found:  # the first of those that compute the same
        distinct.setdefault(contestant.numeric_settings, contestant)
    return tuple(distinct.values())


def ablations(rule: Contestant) -> list[Contestant]:
    """The rule with one setting changed: every other choice, half and twice a number, and zero."""
    found = []
    for option in options_of(type(rule.policy)):
        if not option.numeric or option.fixed:
            continue
        for value in _others(option, getattr(rule.policy, option.name)):
            try:
                found.append(_contestant(PREFILL.make({option.name: value}, rule.policy), Kind.ABLATION))
            except ConfigError:
                continue  # half a chunk is smaller than its memory set
    return found


def _contestant(policy: PrefillPolicy[Any], kind: Kind) -> Contestant:
    return Contestant(str(policy), policy, kind)


def _others(option: Option, value: Any) -> Iterator[Any]:
    if option.choices is not None:
        yield from (choice for choice in option.choices if choice != value)
    elif isinstance(value, str):
        yield option.default
    elif isinstance(value, bool):
        yield not value
    elif value:
        yield from (type(value)(value / 2), value * 2)
        if option.least == 0:
            yield type(value)(0)
    else:
        yield from (type(value)(4), type(value)(64))
    yield from (word for word in option.words if word != value)
