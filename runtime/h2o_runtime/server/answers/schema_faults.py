"""Which part of a schema no grammar can follow. The compiler of grammars does not say it, so parts are tried."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from h2o_runtime.answers.constraint import Constraint
from h2o_runtime.answers.grammar import UnfollowableError
from h2o_runtime.errors import ConfigError
from h2o_runtime.server.answers.constraint import AnswerConstraint, GivenSchema, Grammar
from h2o_runtime.server.answers.followed_schema import followed
from h2o_runtime.server.answers.schema_keywords import FOLLOWED, Step, inside

_SECONDS = 3.0  # for all trials; afterwards the smallest part so far counts
_LONGEST = 100  # characters of a value in a message

# Why no grammar can follow a schema inside of a root, to which references refer; empty if one can.
Refusal = Callable[[Any, Any], str]


def located(
    error: UnfollowableError, wanted: AnswerConstraint, compiled: Callable[[Grammar], Constraint]
) -> ConfigError:
    """An error of a constraint, with its place if one schema alone causes it."""
    for given in wanted.schemas if error.reason else ():

        def refusal(schema: Any, root: Any, given: GivenSchema = given) -> str:
            try:
                compiled(given.grammar(root) if schema is root else followed(schema, root)[0]).close()
            except ConfigError as refused:
                return (isinstance(refused, UnfollowableError) and refused.reason) or str(refused)
            return ""

        if reason := refusal(given.schema, given.schema):
            name = f"{given.function}: {wanted.parameters}" if given.function else wanted.field
            return ConfigError(f"{name}{_fault(given.schema, reason, refusal)}", field=wanted.field)
    return error


def _fault(schema: Mapping[str, Any], reason: str, refusal: Refusal) -> str:
    """The place in a schema, the reason, and what to change. reason: why the whole cannot be followed."""
    ends, root, place = time.monotonic() + _SECONDS, schema, Step()
    faulty: Any = schema
    while time.monotonic() < ends:
        root, parts = _needed(root, [place + step for step, _ in inside(faulty)], refusal)
        part = _at(root, parts[0]) if parts else False
        if part is False or not (why := refusal(part, root)):
            break  # no part is wrong by itself
        place, faulty, reason = parts[0], part, why
    faulty = _at(root, place)
    for keyword in [key for key in faulty if key in FOLLOWED] if isinstance(faulty, Mapping) else ():
        fewer = {key: value for key, value in faulty.items() if key != keyword}
        if time.monotonic() < ends and (why := refusal(fewer, _with(root, place, fewer))):
            faulty, reason = fewer, why
    return f"{_spelled(place)}: {reason}: {_remedy(faulty)}"


def _needed(root: Any, parts: list[Step], refusal: Refusal) -> tuple[Any, list[Step]]:
    """A simpler root that cannot be followed either, and the part that it owes this to; none if that is no part."""
    simpler = _without(root, parts)
    if refusal(simpler, simpler):
        return simpler, []
    while len(parts) > 1:
        half = parts[: len(parts) // 2]
        simpler = _without(root, half)
        if refusal(simpler, simpler):
            root, parts = simpler, parts[len(half) :]
        else:
            parts = half
    return root, parts


def _without(root: Any, parts: list[Step]) -> Any:
    """Any value may stand in these places."""
    for part in parts:
        root = _with(root, part, True)
    return root


def _at(value: Any, place: Step) -> Any:
    for key in place:
        value = value[key]
    return value


def _with(value: Any, place: Step, part: Any) -> Any:
    """A copy with another part in a place."""
    if not place:
        return part
    copy = value.copy()
    copy[place[0]] = _with(value[place[0]], place[1:], part)
    return copy


def _spelled(place: Step) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in place)


def _remedy(faulty: Any) -> str:
    """What to change. The type is seldom wrong where another keyword is."""
    if not isinstance(faulty, Mapping):
        return "change or leave it out"
    keywords = [key for key in faulty if key in FOLLOWED]
    shown = [key for key in keywords if key != "type"] or keywords
    return f"change or leave out {' or '.join(f'{key}{_shown(faulty[key])}' for key in shown)}"


def _shown(value: Any) -> str:
    text = "" if isinstance(value, list | Mapping) else f" {json.dumps(value, ensure_ascii=False)}"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
