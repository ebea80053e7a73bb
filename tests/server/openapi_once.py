"""What schemathesis is told where it is to try a value once: the same, and which requests it leaves out.

Chats, completions and responses share most of their parameters, and schemathesis would send the same boundary
values to every one of them.
"""

from __future__ import annotations

import json
from typing import Any

import schemathesis
from tests.server import openapi_hooks as openapi_hooks  # its checks


class Tried:
    """Values of parameters, and where each was sent first."""

    def __init__(self) -> None:
        self._usual: dict[
            str, dict[str, Any]
        ] = {}  # by path, the body from which schemathesis changes a member
        self._paths: dict[tuple[str, str, str], str] = {}

    def elsewhere(self, case: schemathesis.Case) -> bool:
        """Whether the body differs from the usual one in one parameter, whose value another path has got."""
        phase = case.meta.phase.name.value if case.meta else ""
        if phase != "coverage" or case.method != "POST" or not isinstance(case.body, dict):
            return False
        usual, body = self._usual.setdefault(case.path, case.body), case.body
        changed = [name for name in usual.keys() | body if usual.get(name, ...) != body.get(name, ...)]
        if len(changed) != 1 or changed[0] not in body:
            return False
        key = (changed[0], json.dumps(body[changed[0]], default=str), _declared(case, changed[0]))
        return self._paths.setdefault(key, case.path) != case.path


def _declared(case: schemathesis.Case, name: str) -> str:
    """The schema of a parameter: one of the same name need not be the same."""
    content = case.operation.definition.raw["requestBody"]["content"]["application/json"]["schema"]
    schemas = case.operation.schema.raw_schema["components"]["schemas"]
    members = schemas[content["$ref"].rpartition("/")[2]]["properties"]
    return json.dumps(members.get(name))


_TRIED = Tried()


@schemathesis.hook
def filter_case(context: schemathesis.HookContext, case: schemathesis.Case) -> bool:
    return not _TRIED.elsewhere(case)
