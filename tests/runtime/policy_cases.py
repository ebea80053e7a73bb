"""Settings of every prefill policy that its property tests draw from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import strategies as st

from h2o_runtime import PrefillConfig


@dataclass(frozen=True)
class PolicyCase:
    """any       a strategy of configurations for prompts of some 150 tokens
    covering  a strategy of those under which a prompt of at most n tokens is full attention
    pairs_are_counted  whether the policy can tell in advance how many pairs it computes, and not the most only
    """

    any: st.SearchStrategy[PrefillConfig]
    covering: Callable[[int], st.SearchStrategy[PrefillConfig]]
    pairs_are_counted: bool = True


@st.composite
def h2o_configs(
    draw: st.DrawFn,
    tails: tuple[int, ...] = (0, 5, 70),
    scores: tuple[str, ...] = ("colsum", "window", "query"),
) -> PrefillConfig:
    chunk = draw(st.integers(8, 40))
    local = draw(st.integers(1, chunk - 1))
    heavy = draw(st.integers(0, chunk - 1 - local))
    tile = draw(st.sampled_from([size for size in range(1, chunk + 1) if chunk % size == 0]))
    return PrefillConfig(
        chunk_size=chunk,
        batch_size=chunk + draw(st.integers(0, 60)),
        local=local,
        heavy=heavy,
        score=draw(st.sampled_from(scores)),
        score_window=draw(st.integers(1, local)),
        score_tile=tile,
        score_queries=draw(st.integers(1, tile)),
        score_candidates=local + heavy + draw(st.integers(0, 150)),
        score_heads=draw(st.sampled_from(["kv", "query"])),
        sink=draw(st.integers(0, heavy)),
        dense_tail=draw(st.sampled_from(tails)),
    )


@st.composite
def h2o_covering(draw: st.DrawFn, n: int) -> PrefillConfig:
    config = draw(h2o_configs())
    if draw(st.booleans()):
        return config.altered(dense_tail=n + draw(st.integers(0, 9)))
    chunk = max(n, config.chunk_size) + draw(st.integers(0, 9))
    whole = {"chunk_size": chunk, "score_tile": chunk}
    return config.altered(**whole, batch_size=chunk + draw(st.integers(0, 60)))


full_configs = st.builds(
    lambda batch: PrefillConfig(policy="full", batch_size=batch), batch=st.integers(1, 200)
)

subquadratic_configs = st.builds(
    lambda **fields: PrefillConfig(policy="subquadratic", **fields),
    batch_size=st.integers(1, 200),
    window=st.integers(0, 60),
    global_tokens=st.integers(0, 10),
    log_stride=st.booleans(),
    landmarks=st.booleans(),
    landmark_block=st.integers(1, 20),
    landmark_count_bias=st.booleans(),
)


def subquadratic_covering(n: int) -> st.SearchStrategy[PrefillConfig]:
    """Landmarks come on top of the tokens: with any, no window is full attention."""
    return subquadratic_configs.map(lambda config: config.altered(window=n, landmarks=False))


minference_configs = st.builds(
    lambda **fields: PrefillConfig(policy="minference", **fields),
    batch_size=st.integers(1, 200),
    chunk_size=st.integers(2, 160),
    vertical=st.integers(1, 60),
    slash=st.integers(1, 60),
    line_fraction=st.sampled_from([0.0, 0.1, 0.6]),
)


def minference_covering(n: int) -> st.SearchStrategy[PrefillConfig]:
    every = st.sampled_from([{"vertical": n}, {"slash": n}, {"line_fraction": 1.0, "estimate": "prompt"}])
    return st.builds(
        lambda config, all_of: config.altered(**{"line_fraction": 0.0} | all_of), minference_configs, every
    )


CASES = {
    "h2o": PolicyCase(h2o_configs(), h2o_covering),
    "full": PolicyCase(full_configs, lambda n: full_configs),
    "subquadratic": PolicyCase(subquadratic_configs, subquadratic_covering),
    "minference": PolicyCase(minference_configs, minference_covering, pairs_are_counted=False),
}
