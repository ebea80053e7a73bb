"""Settings of every prefill policy that its property tests draw from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st
from tests.prefill import altered

from h2o_runtime.policies.prefill import Full, PrefillPolicy, Query, Subquadratic, VerticalSlash
from h2o_runtime.policies.prefill.h2o import H2O, SCORES


@dataclass(frozen=True)
class PolicyCase:
    """any       a strategy of policies for prompts of some 150 tokens
    covering  a strategy of those under which a prompt of at most n tokens is full attention
    settled   how many rows do not depend on the tokens from a position on
    pairs_are_counted  whether the policy knows the exact number of pairs in advance, not only an upper bound
    counted   a policy without what is not counted
    """

    any: st.SearchStrategy[PrefillPolicy[Any]]
    covering: Callable[[int], st.SearchStrategy[PrefillPolicy[Any]]]
    settled: Callable[[PrefillPolicy[Any], int], int] = lambda policy, position: position
    pairs_are_counted: bool = True
    counted: Callable[[PrefillPolicy[Any]], PrefillPolicy[Any]] = lambda policy: policy


@st.composite
def h2o_policies(
    draw: st.DrawFn,
    tails: tuple[int, ...] = (0, 5, 70),
    scores: tuple[str, ...] = ("colsum", "window", "query"),
) -> H2O[Any]:
    chunk = draw(st.integers(8, 40))
    local = draw(st.integers(1, chunk - 1))
    heavy = draw(st.integers(0, chunk - 1 - local))
    score = draw(st.sampled_from(scores))
    own: dict[str, st.SearchStrategy[Any]] = {}
    if score == "window":
        own = {"window": st.integers(1, local)}
    if score == "query":
        own = {
            "tile": st.integers(1, chunk + 5),
            "queries": st.integers(1, chunk),
            "candidates": st.integers(1, local + heavy + 150),
            "grow": st.sampled_from([0, 40, 97, "never"]),
            "dense_start": st.sampled_from([0, 0, 30, 75, 150]),
            "checks": st.integers(1, chunk),
            "missed": st.sampled_from([0.0, 0.01, 1.0]),
        }
    made: H2O[Any] = SCORES[score](
        chunk_size=chunk,
        batch_size=chunk + draw(st.integers(0, 60)),
        local=local,
        heavy=heavy,
        heads=draw(st.sampled_from(["auto", "kv", "query"])),
        dense_tail=draw(st.sampled_from(tails)),
        **draw(st.fixed_dictionaries(own)),
    )
    return made


@st.composite
def h2o_covering(draw: st.DrawFn, n: int) -> PrefillPolicy[Any]:
    policy = draw(h2o_policies())
    if draw(st.booleans()):
        return altered(policy, dense_tail=n + draw(st.integers(0, 9)))
    if isinstance(policy, Query) and draw(st.booleans()):
        return replace(policy, dense_start=n + draw(st.integers(-policy.chunk_size, 9)))
    chunk = max(n, policy.chunk_size) + draw(st.integers(0, 9))
    return altered(policy, chunk_size=chunk, batch_size=chunk + draw(st.integers(0, 60)))


def h2o_settled(policy: PrefillPolicy[Any], position: int) -> int:
    """Queries of one tile choose its memory set together, so it depends on all of them. Under the guard, the
    queries of a chunk decide together whether it sees everything.
    """
    if not isinstance(policy, Query) or position < policy.first_sparse:
        return position
    if policy.missed < 1:
        return position // policy.chunk_size * policy.chunk_size
    return max(tile.start for tile in policy.tiles(0, position + 1))


def h2o_counted(policy: PrefillPolicy[Any]) -> PrefillPolicy[Any]:
    return replace(policy, checks=0, missed=1.0) if isinstance(policy, Query) else policy


full_policies = st.builds(Full, batch_size=st.integers(1, 200))

subquadratic_policies = st.builds(
    Subquadratic,
    batch_size=st.integers(1, 200),
    window=st.integers(0, 60),
    global_tokens=st.integers(0, 10),
    log_stride=st.booleans(),
    block=st.integers(0, 20),
    count_bias=st.booleans(),
)


def subquadratic_covering(n: int) -> st.SearchStrategy[PrefillPolicy[Any]]:
    """Landmarks come on top of the tokens: with any, no window is full attention."""
    return subquadratic_policies.map(lambda policy: replace(policy, window=n, block=0))


minference_policies = st.builds(
    VerticalSlash,
    batch_size=st.integers(1, 200),
    chunk_size=st.integers(2, 160),
    vertical=st.integers(1, 60),
    slash=st.integers(1, 60),
    fraction=st.sampled_from([0.0, 0.1, 0.6]),
)


def minference_covering(n: int) -> st.SearchStrategy[PrefillPolicy[Any]]:
    every = st.sampled_from([{"vertical": n}, {"slash": n}, {"fraction": 1.0, "estimate": "prompt"}])
    return st.builds(
        lambda policy, all_of: replace(policy, **{"fraction": 0.0} | all_of), minference_policies, every
    )


def minference_settled(policy: PrefillPolicy[Any], position: int) -> int:
    """A chunk's last queries find the lines of all of it."""
    return position // policy.chunk_size * policy.chunk_size


CASES = {
    "h2o": PolicyCase(h2o_policies(), h2o_covering, h2o_settled, counted=h2o_counted),
    "full": PolicyCase(full_policies, lambda n: full_policies),
    "subquadratic": PolicyCase(subquadratic_policies, subquadratic_covering),
    "minference": PolicyCase(minference_policies, minference_covering, minference_settled, False),
}
