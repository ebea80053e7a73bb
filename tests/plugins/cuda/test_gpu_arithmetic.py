"""The arithmetic of a prompt on a GPU: what it counts is what policies do, and pages show what it prints."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bench.gpu_check import arithmetic
from bench.gpu_check.arithmetic import KV_HEADS, QUERY_HEADS, Layer, full, gpu_rule

from h2o_runtime.policies.prefill import Full, Query
from h2o_runtime.schedule import logical_batches

REPO = Path(__file__).resolve().parents[3]
DOCS, KERNELS = REPO / "docs", REPO / "plugins" / "kernels" / "cuda"


@pytest.mark.parametrize("n", [4096, 8192, 32768])
def test_products_are_the_visible_pairs(n: int) -> None:
    pair = 4 * 64 * QUERY_HEADS
    assert Layer(n, 64).attention.flop / pair == pytest.approx(gpu_rule().visible_pairs(n), rel=1e-2)
    assert full(n, 64).flop / pair == pytest.approx(Full().visible_pairs(n), rel=1e-3)


@pytest.mark.parametrize("n", [4096, 8192, 32768])
def test_chunks_choose_in_the_groups_of_the_rule(n: int) -> None:
    """A group takes two launches for its sets, and four for candidates."""
    rule = Query()
    batches = logical_batches(rule.first_of_tail(n), rule.batch_size, rule.chunk_size)
    groups = [group for batch in batches for group in rule.groups(0, 0, batch, KV_HEADS)]
    assert Layer(n, 64, rule).choice.launches == sum(2 + 4 * bool(one.narrowed) for one in groups)


def test_the_longest_list_of_the_default_is_kept_at_hand() -> None:
    """QuerySelect ranks other rows many times over, and reads their neighbours from memory."""
    kept = re.search(r"constexpr int kNear = (\d+);", (KERNELS / "query.cu").read_text())
    assert kept is not None
    assert gpu_rule().most_candidates <= int(kept[1])


def test_the_time_of_full_attention_is_near_the_one_that_was_measured() -> None:
    """A layer of heads of 64 on an H200: bench/results/gpu-h200.md. The default had smaller memory sets there."""
    assert full(32768, 64).seconds == pytest.approx(15.2e-3, rel=0.05)


@pytest.mark.parametrize(
    ("tables", "page"), [(arithmetic.choosing, "cuda.md"), (arithmetic.jetson, "jetson.md")]
)
def test_pages_show_what_it_prints(tables: Callable[[], Iterator[str]], page: str) -> None:
    text = (DOCS / page).read_text().splitlines()
    assert [line for line in tables() if line and line not in text] == []
