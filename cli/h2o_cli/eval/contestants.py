"""The contestants: full attention, the configured rule, rules with other settings, and baselines of its
budget.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from h2o_cli.eval.policies import baseline
from h2o_runtime.components.options import Option, options_of
from h2o_runtime.config.prefill import PrefillConfig
from h2o_runtime.errors import ConfigError
from h2o_runtime.policies.prefill import PREFILL


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
    config: PrefillConfig
    kind: Kind

    @property
    def settings(self) -> str:
        """Everything that changes its results."""
        policy = self.config.algorithm
        numeric = [one for one in options_of(type(policy)) if one.numeric]
        return " ".join(f"{one.name}={getattr(policy, one.name)}" for one in numeric)


def contestants(
    configured: PrefillConfig, also: Sequence[str], baselines: Sequence[str], n: int, ablate: bool = False
) -> tuple[Contestant, ...]:
    """Full attention first, then the configured rule, or the first sparse one if an exact one is configured.

    also: settings beside the configured ones, each as in `parse_settings`. n: tokens of a prompt: a baseline has as
    many keys as the rule at its end. ablate: also whatever differs from the configured rule in one setting. Raises
    ConfigError for settings that contradict.
    """
    exact = next(policy.name for policy in PREFILL if policy.exact)
    if configured.algorithm.exact:
        configured = configured.altered(policy=next(policy.name for policy in PREFILL if not policy.exact))
    rule = Contestant(configured.algorithm.name, configured, Kind.RULE)
    variants = [_variant(rule, changes, Kind.VARIANT) for changes in map(parse_settings, also)]
    if ablate:
        variants += ablations(rule)
    settings = {**configured.settings} | configured.algorithm.budget(n)
    return _distinct(
        Contestant(exact, configured.altered(policy=exact), Kind.TRUTH),
        rule,
        *variants,
        *(Contestant(name, baseline(name, settings), Kind.BASELINE) for name in baselines),
    )


def ablations(rule: Contestant) -> list[Contestant]:
    """The rule with one setting changed: every other choice, half and twice a number, and zero."""
    found = []
    own = {one.name for one in options_of(type(rule.config.algorithm))}
    for one in PREFILL.options:
        if one.name not in own or not one.numeric or not one.symbol:
            continue
        for value in _others(one, getattr(rule.config, one.name)):
            try:
                found.append(_variant(rule, {one.name: value}, Kind.ABLATION))
            except ConfigError:
                continue  # half a chunk is smaller than its memory set
    return found


def parse_settings(text: str) -> dict[str, Any]:
    """Settings of prefill policies, written NAME=VALUE and separated by spaces. Raises ConfigError."""
    known = {one.name: one for one in PREFILL.options}
    found = {}
    for word in text.split():
        name, equals, value = word.partition("=")
        name = name.lstrip("-").replace("-", "_")
        if not equals or name not in known:
            raise ConfigError(
                f"--also has {word!r}: write NAME=VALUE, where NAME is one of {', '.join(known)}"
            )
        if name in found:
            raise ConfigError(f"--also has {name} twice: write it once")
        found[name] = _parse(known[name], value)
    if not found:
        example = PREFILL.options[-1]
        raise ConfigError(f"--also is empty: write NAME=VALUE, as in {example.name}={example.default}")
    return found


def _parse(one: Option, text: str) -> Any:
    if one.choices is not None or text in one.words:
        return text
    if isinstance(one.default, bool):
        return {"true": True, "false": False}.get(text.lower(), text)
    try:
        return type(one.default)(text)
    except ValueError:
        raise ConfigError(f"{one.name} must be a number, but is {text!r}", field=one.name) from None


def _others(one: Option, value: Any) -> Iterator[Any]:
    if one.choices is not None:
        yield from (choice for choice in one.choices if choice != value)
    elif isinstance(value, str):
        yield one.default
    elif isinstance(value, bool):
        yield not value
    elif value:
        yield from (type(value)(value / 2), value * 2)
        if one.least == 0:
            yield type(value)(0)
    else:
        yield from (type(value)(4), type(value)(64))
    yield from (word for word in one.words if word != value)


def _variant(rule: Contestant, changes: dict[str, Any], kind: Kind) -> Contestant:
    config = rule.config.altered(**changes)
    PREFILL.check_used(changes, config.algorithm, flags=False)
    told = [f"{name}={value}" for name, value in changes.items() if name != "policy"]
    return Contestant(" ".join([config.algorithm.name, *told]), config, kind)


def _distinct(*found: Contestant) -> tuple[Contestant, ...]:
    """The first of those that compute the same."""
    distinct: dict[tuple[str, str], Contestant] = {}
    for one in found:
        distinct.setdefault((one.config.algorithm.name, one.settings), one)
    return tuple(distinct.values())
