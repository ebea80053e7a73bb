"""What schemathesis is told by day: the same, and which requests it leaves out.

Of a parameter with hundreds of values, such as messages, it sends the first ones and every fortieth.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import schemathesis
from tests.server import openapi_hooks as openapi_hooks  # its checks

FIRST, EVERY = 4, 40

_USUAL: dict[str, dict[str, Any]] = {}  # by path, the body from which schemathesis changes a member
_SENT: Counter[tuple[str, str]] = Counter()  # by path and parameter


@schemathesis.hook
def filter_case(context: schemathesis.HookContext, case: schemathesis.Case) -> bool:
    """Whether few requests had another value of the one parameter that is not as usual."""
    phase = case.meta.phase.name.value if case.meta else ""
    if phase != "coverage" or case.method != "POST" or not isinstance(case.body, dict):
        return True
    usual, body = _USUAL.setdefault(case.path, case.body), case.body
    changed = [name for name in usual.keys() | body if usual.get(name, ...) != body.get(name, ...)]
    place = case.path, changed[0] if len(changed) == 1 else "several"
    _SENT[place] += 1
    return _SENT[place] <= FIRST or _SENT[place] % EVERY == 0
