"""What the timings of the GPU check call, on the emulator."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from bench.gpu_check import (
    layer,
    library,
    report,
    sparse,
    step_rows,
    timings,
)
from tests import emulation

from h2o_runtime.policies.prefill import Query
from h2o_runtime.policies.prefill.h2o import query_tiles
from h2o_runtime.policies.prefill.h2o.query_tiles import NEVER


@pytest.fixture
def small_timings(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The emulated library, whose device memory is the host's; sizes are such that a call takes no seconds."""
    if missing := emulation.missing():
        pytest.skip(missing)
    sizes = {
        "CHUNK": 64, "BATCH": 128, "TILE": 16, "LOCAL": 8, "SLOTS": 16, "VOTERS": 8, "COLUMNS": 16,
        "DISTANCES": 32, "PAGE_BUDGET": 4, "WINDOW": 16, "SLIDING": 50, "LANDMARK_BLOCK": 16, "QUERY_HEADS": 4,
        "KV_HEADS": 2, "HEAD_SIZES": (64,), "LENGTHS": (256,),
    }  # fmt: skip
    for module, (name, size) in itertools.product((layer, sparse, step_rows, timings), sizes.items()):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, size)
    monkeypatch.setattr(layer, "HEAVY", 8)
    # Before the last batch are 128 rows: fewer than 3/2 of the larger rule's candidates.
    rules = {"": sparse.Rule(2, 80, 16, 4), ", grown": sparse.Rule(2, 104, 24, 8)}
    monkeypatch.setattr(sparse, "RULES", rules)
    monkeypatch.setattr(timings, "milliseconds", lambda work: work() or 1.0)
    monkeypatch.setattr(timings, "roomy", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=None))
    monkeypatch.setenv("H2O_EMULATION_EAGER", "1")
    return emulation.build_library()


@pytest.mark.parametrize(("name", "rule"), [("", Query(grow=NEVER)), (", grown", Query())])
def test_rules_are_those_of_the_policy(name: str, rule: Query) -> None:
    past = timings.LENGTHS[-1] - sparse.BATCH
    sizes = rule.narrowed_to(past), rule.memory_at(past), rule.stride_at(past)
    assert sparse.RULES[name] == sparse.Rule(layer.KV_HEADS, *sizes)
    assert (rule.batch_size, rule.tile_rows) == (sparse.BATCH, sparse.TILE)
    assert (sparse.BLOCK, sparse.NARROWED_FROM) == (query_tiles.BLOCK, query_tiles.NARROWED_FROM)


@pytest.mark.slow
@pytest.mark.parametrize("group", list(sparse.GROUPS))
def test_what_sparse_timings_call_runs(group: str, small_timings: Path) -> None:
    """On a GPU a wrong argument would be found out when the time is already spent."""
    rows = list(timings.TABLES[group](library.Library(small_timings)))
    called = {row["call"] for row in rows}
    assert called >= {"attend"} or group in ("query", "layer kinds")
    if group == "query":
        assert called >= {"candidates", "tiles", "tiles, grown"}
        assert "candidates, grown" not in called, "all of a short past is voted for"
    assert all(row["ms"] == 1 and row["tflop_s"] > 0 for row in rows)


@pytest.mark.slow
def test_steps_of_several_rows_and_sinks(small_timings: Path) -> None:
    torch.manual_seed(0)
    rows = list(timings.TABLES["step rows"](library.Library(small_timings)))
    assert [row["rows"] for row in rows] == [*step_rows.COUNTS, step_rows.MOST_ROWS]
    assert all(row.get("same_bits", True) for row in rows)
    assert report.missed_goals({"step rows": rows}) == []
    wrong = {**rows[0], "same_bits": False, "error": 0.1}
    assert len(report.missed_goals({"step rows": [wrong]})) == 2


@pytest.mark.slow
def test_what_is_chosen_is_attended_to(small_timings: Path) -> None:
    """The timed calls do the work: pages, lines and sets are rows of the cache, and outputs are numbers."""
    torch.manual_seed(0)
    lib = library.Library(small_timings)
    one = layer.Layer(lib, 256, 64)
    for work in (one.phase1, one.prefill, one.prefill_window, lambda: one.cached(16), one.decode_step):
        one.o.zero_()
        work()
        assert bool(one.o[-1].isfinite().all() & one.o[-1].any())
    for name, group in sparse.GROUPS.items():
        one.o.zero_()
        for work, _ in group(lib, one).values():
            work()
        assert bool(one.o.isfinite().all())
        assert name == "query" or bool(one.o[-1].any())
