"""The runtime requests of a client's request, one for every choice of its answer."""

from __future__ import annotations

from dataclasses import dataclass

from h2o_runtime.answers.request import Request
from h2o_server.answers.constraint import AnswerConstraint


@dataclass(frozen=True)
class Choices:
    """One request for each choice.

    constraint: what all of them follow; None if they are free. left_alone: what the client's request has that no
    answer here depends on, by its names.
    """

    requests: list[Request]
    constraint: AnswerConstraint | None
    left_alone: frozenset[str] = frozenset()
