"""The runtime requests of a client's request, one for every choice of its answer."""

from __future__ import annotations

from dataclasses import dataclass

from h2o_runtime.answers.request import Request
from h2o_runtime.server.answers.constraint import AnswerConstraint


@dataclass(frozen=True)
class Choices:
    """One request for each choice, and the constraint that all of them follow; None if they are free."""

    requests: list[Request]
    constraint: AnswerConstraint | None
