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
                compiled(given.grammar(root) if schema is root else _alone(schema, root)).close()
            except ConfigError as refused:
                return (isinstance(refused, UnfollowableError) and refused.reason) or str(refused)
            return ""

        if reason := refusal(given.schema, given.schema):
            name = f"{given.function}: {wanted.parameters}" if given.function else wanted.field
            return ConfigError(f"{name}{_fault(given.schema, reason, refusal)}", field=wanted.field)
    return error


def _alone(schema: Any, root: Any) -> Mapping[str, Any]:
    grammar = followed(schema, root)[0]
    return grammar if isinstance(grammar, Mapping) else {"allOf": [grammar]}


def _fault(schema: Mapping[str, Any], reason: str, refusal: Refusal) -> str:
    """The place in a schema, the reason, and what to change. reason: why the whole cannot be followed."""
    ends, root, place = time.monotonic() + _SECONDS, schema, Step()
    while (found := _narrower(root, place, refusal, ends)) is not None:
        root, place, reason = found
    faulty = _at(root, place)
    for keyword in list(faulty) if isinstance(faulty, Mapping) else ():
        fewer = {key: value for key, value in faulty.items() if key != keyword}
        if time.monotonic() < ends and (why := refusal(fewer, _replaced(root, place, fewer))):
            faulty, reason = fewer, why
    return f"{_spelled(place)}: {reason}: {_remedy(faulty)}"


def _narrower(root: Any, place: Step, refusal: Refusal, ends: float) -> tuple[Any, Step, str] | None:
    """A simpler root, the place of a part that is at fault, and the reason; None if no part is at fault alone."""
    for step, part in inside(_at(root, place)):
        if time.monotonic() > ends:
            return None
        simpler = _replaced(root, place + step, True)
        if refusal(simpler, simpler):
            root = simpler  # another part is at fault
        elif part is not False and (reason := refusal(part, root)):
            return root, place + step, reason
        else:
            return None
    return None


def _at(value: Any, place: Step) -> Any:
    for key in place:
        value = value[key]
    return value


def _replaced(value: Any, place: Step, part: Any) -> Any:
    """A copy with another part in a place."""
    if not place:
        return part
    copy = value.copy()
    copy[place[0]] = _replaced(value[place[0]], place[1:], part)
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
