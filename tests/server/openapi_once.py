"""What schemathesis is told where it is to try a value once: the same, and which requests it leaves out.

Chats, completions and responses share most of their parameters, and schemathesis would send the same boundary
values to every one of them. Of a parameter with hundreds of values, such as messages, it sends the first ones and
every twentieth.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import schemathesis
from tests.server import openapi_hooks as openapi_hooks  # its checks

FIRST, EVERY = 8, 20


class Tried:
    """Values of parameters, and where each was sent first."""

    def __init__(self) -> None:
        self._usual: dict[
            str, dict[str, Any]
        ] = {}  # by path, the body from which schemathesis changes a member
        self._paths: dict[tuple[str, str, str], str] = {}
        self._sent: Counter[tuple[str, str]] = Counter()  # by path and parameter

    def enough(self, case: schemathesis.Case) -> bool:
        """Whether another path has got the one parameter that is not as usual, or this one has got many of it."""
        phase = case.meta.phase.name.value if case.meta else ""
        if phase != "coverage" or case.method != "POST" or not isinstance(case.body, dict):
            return False
        usual, body = self._usual.setdefault(case.path, case.body), case.body
        changed = [name for name in usual.keys() | body if usual.get(name, ...) != body.get(name, ...)]
        name = changed[0] if len(changed) == 1 else "several"
        if name in body:
            key = (name, json.dumps(body[name], default=str), _declared(case, name))
            if self._paths.setdefault(key, case.path) != case.path:
                return True
        self._sent[case.path, name] += 1
        return self._sent[case.path, name] > FIRST and self._sent[case.path, name] % EVERY != 0


def _declared(case: schemathesis.Case, name: str) -> str:
    """The schema of a parameter: one of the same name need not be the same."""
    content = case.operation.definition.raw["requestBody"]["content"]["application/json"]["schema"]
    schemas = case.operation.schema.raw_schema["components"]["schemas"]
    members = schemas[content["$ref"].rpartition("/")[2]]["properties"]
    return json.dumps(members.get(name))


_TRIED = Tried()


@schemathesis.hook
def filter_case(context: schemathesis.HookContext, case: schemathesis.Case) -> bool:
    return not _TRIED.enough(case)
