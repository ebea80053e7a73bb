"""How much of the cache a new prompt can keep.

A prompt is always given in full. Comparing tokens shows how much of it the cache already holds; the policy
knows how much of that may be kept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Protocol

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from h2o_runtime.components.options import effective_options

IntArray = NDArray[np.int64]

MOST_DIFFERENT = 64  # tokens of a short difference
LEAST_SAME = 256  # tokens after it that are the same as before


class Policy(Protocol):
    """What others ask of the prefill policy of a session; the module of its class imports this one."""

    @property
    def name(self) -> str: ...

    def counts(self, n: int) -> dict[str, int]: ...

    def visible_pairs(self, n: int) -> int: ...

    def saved_state(self, state: Any, length: int) -> Any: ...

    def lasting_rows(self, n: int) -> int: ...

    def reuse(self, shared: int, cached: int, n: int, origin: Provenance) -> Reuse: ...


class Prefix(Enum):
    """How the tokens before a prefill relate to it. Explicit, because row counts cannot tell."""

    NONE = "none"  # the cache starts empty
    BOUNDARY = "boundary"  # a row of a fresh run, often a chunk's end: go on exactly as that run would have
    HISTORY = "history"  # a finished conversation that goes on
    EXACT = "exact"  # any cached token is what a fresh run would compute


@dataclass(frozen=True)
class Reuse:
    """Keep `length` cached tokens, as `prefix`."""

    prefix: Prefix
    length: int


@dataclass(frozen=True)
class Provenance:
    """How the cache's content was computed.

    policy        the prefill policy that it was computed with; None when the cache is empty
    prompt        length of the fresh part: one uninterrupted prompt from position 0
    sparse        rows of the fresh part that are the same for any prompt that shares these tokens
    turn          rows before the conversation's last turn, to which it can be rolled back; 0 before the first
                  turn
    complete      false after a cancelled prefill, from which only a chunk boundary can be continued
    whole         whether every row is still there: nothing was evicted
    earliest      the earliest row from which a prompt can continue: `KVStore.earliest`
    only          the only rows from which a prompt can continue, rising: those with known states; None: any
    rounded       whether the cache stores rows shorter than the model computes them
    exact_decode  whether all tokens generated after the fresh part saw everything before them
    """

    policy: Policy | None = None
    prompt: int = 0
    sparse: int = 0
    turn: int = 0
    complete: bool = True
    whole: bool = True
    exact_decode: bool = True
    earliest: int = 0
    rounded: bool = False
    only: tuple[int, ...] | None = None

    @classmethod
    def fresh(cls, policy: Policy, prompt: int) -> Provenance:
        return cls(policy, prompt, policy.lasting_rows(prompt))

    def decoded(self, exact: bool) -> Provenance:
        """The provenance after a generated token that saw everything before it, or did not."""
        return self if exact or not self.exact_decode else replace(self, exact_decode=False)

    def exact_rows(self, cached: int) -> int:
        """Under an exact policy: how many of the `cached` rows equal those of a fresh run."""
        return cached if self.exact_decode else min(cached, self.sparse)

    def evicting(self, rows: int, limit: int | None) -> Provenance:
        """The provenance with `rows` rows in a cache that evicts beyond `limit` rows."""
        return self if limit is None or rows <= limit else replace(self, whole=False, exact_decode=False)

    def from_row(self, earliest: int) -> Provenance:
        """The provenance if no prompt can continue from a row before `earliest`."""
        return self if earliest <= self.earliest else replace(self, earliest=earliest)

    def goes_on_at(self, row: int) -> bool:
        return row >= self.earliest and (self.only is None or row in self.only)

    @classmethod
    def interrupted(cls, policy: Policy | None, boundary: int) -> Provenance:
        """A cancelled run that had gone back to `boundary`, of which the policy still has its full state."""
        return cls(policy, boundary + 1, boundary, complete=False)


def same_arithmetic(a: Policy | None, b: Policy) -> bool:
    """Whether two policies give the same numbers: the batch size does not matter."""
    return type(a) is type(b) and _numeric_settings(a) == _numeric_settings(b)


def _numeric_settings(policy: Policy | None) -> dict[str, Any]:
    return {
        option.name: getattr(policy, option.name) for option in effective_options(policy) if option.numeric
    }


def shared_prefix(known: IntArray, tokens: IntArray) -> int:
    """The length of the common prefix of `tokens` [N] and `known` [M]."""
    limit = min(len(known), len(tokens))
    different = np.flatnonzero(known[:limit] != tokens[:limit])
    return int(different[0]) if len(different) else limit


def plan_reuse(known: IntArray, origin: Provenance, tokens: IntArray, policy: Policy) -> Reuse:
    """What to keep of a session's tokens `known` [M] for the prompt `tokens` [N] under `policy`.

    At least one token is left to run.
    """
    if not len(known) or not origin.whole or not same_arithmetic(origin.policy, policy):
        return Reuse(Prefix.NONE, 0)
    shared = shared_prefix(known, tokens)
    found = policy.reuse(shared, len(known), len(tokens), origin)
    # The policy knows which rows it could go on at, and the store which it can: from the best one down.
    for row in sorted(origin.only or (), reverse=True):
        if row <= found.length and not origin.goes_on_at(found.length):
            found = policy.reuse(min(shared, row), len(known), len(tokens), origin)
    return found if origin.goes_on_at(found.length) else Reuse(Prefix.NONE, 0)


@dataclass(frozen=True)
class ShortDifference:
    """A few tokens of a prompt differ from cached ones, and so others are read again that are the same.

    at      the first token that differs
    tokens  those of the prompt that differ; 0 where it only has fewer
    again   those that are read again
    """

    at: int
    tokens: int
    again: int


def short_difference(known: IntArray, tokens: IntArray, kept: int) -> ShortDifference | None:
    """That between a session's tokens `known` [M] and the prompt `tokens` [N], which keeps `kept` rows.

    None unless LEAST_SAME tokens after it are the same, and half of what is read was cached.
    """
    if len(tokens) < kept + LEAST_SAME or (at := shared_prefix(known, tokens)) < kept:
        return None
    known, after = known[at:], tokens[at:]
    sample = after[MOST_DIFFERENT:LEAST_SAME]  # the same as before, wherever a short difference ends
    places = known[: MOST_DIFFERENT + LEAST_SAME]
    if len(sample) < LEAST_SAME - MOST_DIFFERENT or len(places) < len(sample):
        return None
    best, longest = None, LEAST_SAME
    for place in np.flatnonzero((sliding_window_view(places, len(sample)) == sample).all(axis=1)).tolist():
        before = shared_prefix(known[:place][::-1], after[:MOST_DIFFERENT][::-1])
        same = before + shared_prefix(known[place:], after[MOST_DIFFERENT:])
        again = at - kept + same
        if place - before <= MOST_DIFFERENT and same >= longest and 2 * again >= len(tokens) - kept:
            best, longest = ShortDifference(at, MOST_DIFFERENT - before, again), same
    return best
