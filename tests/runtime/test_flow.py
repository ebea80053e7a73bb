"""The order in which the host enqueues dense graphs and attention. That the GPU keeps to what was enqueued is for
test_backend_tensorrt.py to show."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from h2o_runtime.devices import HostDevice
from h2o_runtime.devices.cuda_flow import CudaFlow, Lanes
from h2o_runtime.devices.host import HUGE_PAGE, LINE
from h2o_runtime.schedule import spans

Enqueued = list[tuple[str, int, int]]  # what, layer, tile or row


class Stream:
    def __init__(self, urgent: bool = False) -> None:
        self.urgent = urgent

    def wait(self, event: Any) -> None:
        pass


class Event:
    def record(self, stream: Stream) -> None:
        pass

    def synchronize(self) -> None:
        pass


def lanes() -> Lanes:
    module: Any = SimpleNamespace(Stream=Stream, Event=Event)
    return Lanes(module)


def enqueued(flow: Any, n: int, batch: int, layers: int = 2, asks: bool = True) -> Enqueued:
    """What a policy with logical batches of `batch` rows has the host enqueue."""
    log: Enqueued = []
    for layer in range(layers):
        with flow.layer(lambda tile, layer=layer: log.append(("dense", layer, tile))):
            for rows in spans(n, batch):
                if asks:
                    flow.needs(rows.stop)
                log.append(("attention", layer, rows.stop))
                if asks:
                    flow.finished(rows.stop)
    return log


def test_dense_graphs_and_attention_come_in_turn() -> None:
    """Attention of a tile is not kept waiting by dense graphs of later ones."""
    log = enqueued(CudaFlow(lanes(), list(spans(40, 10))), 40, 10, layers=1)
    assert log == [
        ("dense", 0, 0),
        ("attention", 0, 10),
        ("dense", 0, 1),
        ("attention", 0, 20),
        ("dense", 0, 2),
        ("attention", 0, 30),
        ("dense", 0, 3),
        ("attention", 0, 40),
    ]


def test_each_tile_of_each_layer_runs_once() -> None:
    for n, tile, batch in ((40, 10, 10), (37, 10, 20), (37, 10, 30), (25, 10, 5), (9, 10, 10)):
        log = enqueued(CudaFlow(lanes(), list(spans(n, tile))), n, batch)
        dense = [entry[1:] for entry in log if entry[0] == "dense"]
        assert dense == [(layer, t) for layer in range(2) for t in range(-(-n // tile))]
        for at, (what, layer, stop) in enumerate(log):
            needed = [("dense", layer, t) for t in range(-(-stop // tile))]
            assert what == "dense" or set(needed) <= set(log[:at]), "attention to rows that were not computed"


def test_a_policy_that_asks_for_nothing_finds_all_rows_on_the_host() -> None:
    log = enqueued(HostDevice().flow(list(spans(30, 10))), 30, 10, asks=False)
    assert [entry[0] for entry in log[:6]] == ["dense"] * 3 + ["attention"] * 3


def test_on_a_gpu_a_layer_is_complete_even_so() -> None:
    log = enqueued(CudaFlow(lanes(), list(spans(30, 10))), 30, 30, layers=1, asks=False)
    assert [entry[2] for entry in log if entry[0] == "dense"] == [0, 1, 2]


@pytest.mark.parametrize("shape", [(1, 3), (5, 7), (700, 1024)])
def test_arrays_of_the_host_begin_at_lines_and_huge_pages(shape: tuple[int, int]) -> None:
    for make in (HostDevice().empty, HostDevice().zeros):
        array = make(shape, np.float32)
        assert (array.shape, array.dtype, array.flags.c_contiguous) == (shape, np.float32, True)
        assert array.ctypes.data % (HUGE_PAGE if array.nbytes >= HUGE_PAGE else LINE) == 0
    assert not array.any()
