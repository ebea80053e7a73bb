"""Which part of a schema no grammar can follow. The compiler of grammars does not say it, so parts are tried."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from h2o_runtime.answers.constraint import Constraint
from h2o_runtime.errors import ConfigError
from h2o_server.answers.constraint import AnswerConstraint, GivenSchema, Grammar
from h2o_server.answers.followed_schema import followed
from h2o_server.answers.grammar import UnfollowableError
from h2o_server.answers.schema_keywords import FOLLOWED, Step, inside

_SECONDS = 3.0  # for all trials; afterwards the smallest part so far counts
_LONGEST = 100  # characters of a value in a message

# Why no grammar can follow a schema inside of a root, to which references refer; empty if one can.
Refusal = Callable[[Any, Any], str]


def located(
    error: UnfollowableError, wanted: AnswerConstraint, compiled: Callable[[Grammar], Constraint]
) -> ConfigError:
    """An error of a constraint, with its place if one schema alone causes it."""
    ends = time.monotonic() + _SECONDS
    for given in wanted.schemas if error.reason else ():

        def refusal(schema: Any, root: Any, given: GivenSchema = given) -> str:
            try:
                compiled(given.grammar(root) if schema is root else followed(schema, root)[0]).close()
            except ConfigError as refused:
                return (isinstance(refused, UnfollowableError) and refused.reason) or str(refused)
            return ""

        if time.monotonic() < ends and (reason := refusal(given.schema, given.schema)):
            name = f"{given.function}: {wanted.parameters}" if given.function else wanted.field
            return ConfigError(f"{name}{_fault(given.schema, reason, refusal, ends)}", field=wanted.field)
    return error


def _fault(schema: Any, reason: str, refusal: Refusal, ends: float) -> str:
    """The place in a schema, the reason, and what to change. reason: why the whole cannot be followed."""
    root, place = schema, Step()
    while time.monotonic() < ends:
        root, parts = _needed(root, [place + step for step, _ in inside(_at(root, place))], refusal)
        part = _at(root, parts[0]) if parts else False
        if part is False or not (why := refusal(part, root)):
            break  # no part is wrong by itself
        place, reason = parts[0], why
    faulty = _at(root, place)
    for keyword in [key for key in faulty if key in FOLLOWED] if isinstance(faulty, Mapping) else ():
        fewer = {key: value for key, value in faulty.items() if key != keyword}
        changed = _with(root, [place], fewer)
        if time.monotonic() < ends and (why := refusal(_at(changed, place), changed)):
            faulty, reason = fewer, why
    return f"{_spelled(place)}: {reason}: {_remedy(faulty)}"


def _needed(root: Any, parts: list[Step], refusal: Refusal) -> tuple[Any, list[Step]]:
    """A simpler root that cannot be followed either, and the part that it owes this to; none if that is no part."""
    simpler = _with(root, parts, True)
    if refusal(simpler, simpler):
        return simpler, []
    while len(parts) > 1:
        half = parts[: len(parts) // 2]
        simpler = _with(root, half, True)
        if refusal(simpler, simpler):
            root, parts = simpler, parts[len(half) :]
        else:
            parts = half
    return root, parts


def _at(value: Any, place: Step) -> Any:
    for key in place:
        value = value[key]
    return value


def _with(root: Any, places: list[Step], value: Any) -> Any:
    """A copy with a value in these places."""
    copy = [json.loads(json.dumps(root))]
    for place in places:
        _at(copy, (0, *place[:-1]) if place else ())[place[-1] if place else 0] = value
    return copy[0]


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
