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
    settled   how many rows do not depend on the tokens from a position on
    pairs_are_counted  whether the policy knows the exact number of pairs in advance, not only an upper bound
    counted   a configuration without what is not counted
    """

    any: st.SearchStrategy[PrefillConfig]
    covering: Callable[[int], st.SearchStrategy[PrefillConfig]]
    settled: Callable[[PrefillConfig, int], int] = lambda config, position: position
    pairs_are_counted: bool = True
    counted: Callable[[PrefillConfig], PrefillConfig] = lambda config: config


@st.composite
def h2o_configs(
    draw: st.DrawFn,
    tails: tuple[int, ...] = (0, 5, 70),
    scores: tuple[str, ...] = ("colsum", "window", "query"),
) -> PrefillConfig:
    chunk = draw(st.integers(8, 40))
    local = draw(st.integers(1, chunk - 1))
    heavy = draw(st.integers(0, chunk - 1 - local))
    score = draw(st.sampled_from(scores))
    grows = score == "query" and draw(st.booleans())
    return PrefillConfig(
        chunk_size=chunk,
        batch_size=chunk + draw(st.integers(0, 60)),
        local=local,
        heavy="auto" if grows else heavy,
        score=score,
        score_window=draw(st.integers(1, local)),
        score_tile=draw(st.integers(1, chunk + 5)),
        score_queries=draw(st.integers(1, chunk)),
        score_candidates=draw(st.integers(1, local + heavy + 150)),
        score_grow=draw(st.sampled_from([0, 40, 97, "never"])),
        score_heads=draw(st.sampled_from(["auto", "kv", "query"])),
        score_checks=draw(st.integers(1, chunk)),
        score_missed=draw(st.sampled_from([0.0, 0.01, 1.0])),
        sink=0 if grows else draw(st.integers(0, heavy)),
        dense_tail=draw(st.sampled_from(tails)),
    )


@st.composite
def h2o_covering(draw: st.DrawFn, n: int) -> PrefillConfig:
    config = draw(h2o_configs())
    if draw(st.booleans()):
        return config.altered(dense_tail=n + draw(st.integers(0, 9)))
    chunk = max(n, config.chunk_size) + draw(st.integers(0, 9))
    return config.altered(chunk_size=chunk, batch_size=chunk + draw(st.integers(0, 60)))


def h2o_settled(config: PrefillConfig, position: int) -> int:
    """Queries of one tile choose its memory set together, so it depends on all of them. Under the guard, the
    queries of a chunk decide together whether it sees everything.
    """
    if config.score != "query" or position < config.chunk_size:
        return position
    if config.score_missed < 1:
        return position // config.chunk_size * config.chunk_size
    return max(tile.start for tile in config.algorithm.tiles(0, position + 1))


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


def minference_settled(config: PrefillConfig, position: int) -> int:
    """A chunk's last queries find the lines of all of it."""
    return position // config.chunk_size * config.chunk_size


CASES = {
    "h2o": PolicyCase(
        h2o_configs(),
        h2o_covering,
        h2o_settled,
        counted=lambda config: config.altered(score_checks=0, score_missed=1.0),
    ),
    "full": PolicyCase(full_configs, lambda n: full_configs),
    "subquadratic": PolicyCase(subquadratic_configs, subquadratic_covering),
    "minference": PolicyCase(minference_configs, minference_covering, minference_settled, False),
}
