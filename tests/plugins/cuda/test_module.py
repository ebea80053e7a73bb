"""h2o_plugins._cuda under the emulation: what it owns, and what waits for what."""

from __future__ import annotations

import gc
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import h2o_plugins

REPO = Path(__file__).resolve().parents[3]


def number_at(cuda: ModuleType, stream: Any, address: int) -> int:
    out = np.zeros(1, np.int64)
    stream.download(address, out)
    stream.synchronize()
    return int(out[0])


# Memory


def test_is_found_by_the_package(emulated_cuda: ModuleType) -> None:
    assert h2o_plugins.cuda_kernels() is emulated_cuda
    assert emulated_cuda.MEMORY == "cpu"
    assert emulated_cuda.device_count() == 1
    assert "emulation" in emulated_cuda.device_name()


def test_memory_is_given_back(emulated_cuda: ModuleType) -> None:
    gc.collect()
    free, total = emulated_cuda.memory_info()
    memory = emulated_cuda.Memory(1000)
    assert memory.nbytes == 1000
    assert memory.address % 16 == 0
    assert emulated_cuda.memory_info() == (free - 1000, total)
    del memory
    assert emulated_cuda.memory_info() == (free, total)


def test_memory_error_names_the_bytes(emulated_cuda: ModuleType) -> None:
    for kind in (emulated_cuda.Memory, emulated_cuda.PinnedMemory):
        with pytest.raises(MemoryError, match=str(1 << 60)):
            kind(1 << 60)


def test_pinned_array_keeps_its_memory(emulated_cuda: ModuleType) -> None:
    array = emulated_cuda.PinnedMemory(64).array()
    gc.collect()
    assert array.shape == (64,)
    assert array.dtype == np.uint8
    array[:] = 7
    assert array.sum() == 7 * 64


# Streams


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int32, np.int64, np.bool_, np.uint8])
def test_upload_copy_clear_download(emulated_cuda: ModuleType, dtype: Any) -> None:
    source = np.arange(24).reshape(2, 3, 4).astype(dtype)
    one, other = emulated_cuda.Memory(source.nbytes), emulated_cuda.Memory(source.nbytes)
    stream, target = emulated_cuda.Stream(), np.zeros_like(source)
    stream.upload(source, one.address)
    stream.copy(one.address, other.address, source.nbytes)
    stream.clear(one.address, source.nbytes)
    stream.download(other.address, target)
    stream.synchronize()
    np.testing.assert_array_equal(target, source)
    stream.download(one.address, target)
    stream.synchronize()
    assert not target.any()


def test_host_arrays_are_contiguous_and_writable(emulated_cuda: ModuleType) -> None:
    stream, memory = emulated_cuda.Stream(), emulated_cuda.Memory(64)
    array = np.zeros((4, 4), np.float32)
    with pytest.raises(TypeError):
        stream.upload(array[:, 1], memory.address)
    with pytest.raises(TypeError):
        stream.download(memory.address, array.T[:2])
    array.flags.writeable = False
    stream.upload(array, memory.address)
    with pytest.raises(TypeError):
        stream.download(memory.address, array)


def test_pageable_memory_is_read_at_once_and_pinned_memory_later(emulated_cuda: ModuleType) -> None:
    stream, memory = emulated_cuda.Stream(), emulated_cuda.Memory(8)
    pageable = np.array([5], np.int64)
    stream.upload(pageable, memory.address)
    pageable[:] = 6
    assert number_at(emulated_cuda, stream, memory.address) == 5
    pinned = emulated_cuda.PinnedMemory(8).array().view(np.int64)
    pinned[:] = 5
    stream.upload(pinned, memory.address)
    pinned[:] = 6
    assert number_at(emulated_cuda, stream, memory.address) == 6


def test_a_download_to_pinned_memory_is_there_after_synchronize(emulated_cuda: ModuleType) -> None:
    stream, memory = emulated_cuda.Stream(), emulated_cuda.Memory(8)
    pinned = emulated_cuda.PinnedMemory(8).array().view(np.int64)
    pinned[:] = 0
    stream.write_integers(memory.address, [9])
    stream.download(memory.address, pinned)
    assert pinned[0] == 0
    stream.synchronize()
    assert pinned[0] == 9


def test_write_integers(emulated_cuda: ModuleType) -> None:
    stream, memory = emulated_cuda.Stream(), emulated_cuda.Memory(64)
    out = np.zeros(8, np.int64)
    stream.write_integers(memory.address, list(range(8)))
    stream.write_integers(memory.address + 16, [-1, 1 << 40])
    stream.download(memory.address, out)
    stream.synchronize()
    assert out.tolist() == [0, 1, -1, 1 << 40, 4, 5, 6, 7]
    for wrong in ([], list(range(9))):
        with pytest.raises(ValueError, match="write_integers"):
            stream.write_integers(memory.address, wrong)


def read_what_another_stream_writes(cuda: ModuleType, *, wait: bool) -> bool:
    """Whether the reader saw the last thing that the writer wrote before its event."""
    writer, reader, written = cuda.Stream(), cuda.Stream(), cuda.Event()
    memory, seen = cuda.Memory(8), cuda.Memory(8)
    for number in range(3):
        writer.write_integers(memory.address, [number])
    written.record(writer)
    if wait:
        reader.wait(written)
    reader.copy(memory.address, seen.address, 8)
    return number_at(cuda, reader, seen.address) == 2


def overwrite_what_another_stream_reads(cuda: ModuleType, *, wait: bool) -> bool:
    """Whether the reader still saw what was there before the writer's turn."""
    writer, reader, read = cuda.Stream(), cuda.Stream(), cuda.Event()
    memory, seen = cuda.Memory(8), cuda.Memory(8)
    reader.write_integers(memory.address, [1])
    reader.synchronize()
    reader.copy(memory.address, seen.address, 8)
    read.record(reader)
    if wait:
        writer.wait(read)
    writer.write_integers(memory.address, [2])
    writer.synchronize()
    return number_at(cuda, reader, seen.address) == 1


HAZARDS = [read_what_another_stream_writes, overwrite_what_another_stream_reads]


@pytest.mark.parametrize("hazard", HAZARDS)
def test_a_wait_orders_two_streams_and_its_lack_shows(emulated_cuda: ModuleType, hazard: Any) -> None:
    assert all(hazard(emulated_cuda, wait=True) for _ in range(30))
    assert not all(hazard(emulated_cuda, wait=False) for _ in range(30))


def test_events_measure_time_when_asked_to(emulated_cuda: ModuleType) -> None:
    stream, memory = emulated_cuda.Stream(), emulated_cuda.Memory(1 << 20)
    start, end, plain = emulated_cuda.Event(timing=True), emulated_cuda.Event(True), emulated_cuda.Event()
    start.record(stream)
    stream.clear(memory.address, memory.nbytes)
    end.record(stream)
    plain.record(stream)
    with pytest.raises(emulated_cuda.CudaError, match="cudaEventElapsedTime: device not ready"):
        end.milliseconds_since(start)
    end.synchronize()
    assert end.milliseconds_since(start) > 0
    stream.synchronize()
    with pytest.raises(emulated_cuda.CudaError, match="cudaEventElapsedTime"):
        plain.milliseconds_since(start)


# Graphs


def test_a_graph_repeats_what_was_captured(emulated_cuda: ModuleType) -> None:
    stream, memory = emulated_cuda.Stream(), emulated_cuda.Memory(16)
    pinned = emulated_cuda.PinnedMemory(8).array().view(np.int64)
    stream.clear(memory.address, 16)
    stream.begin_capture()
    stream.upload(pinned, memory.address)
    stream.copy(memory.address, memory.address + 8, 8)
    graph = stream.end_capture()
    assert number_at(emulated_cuda, stream, memory.address) == 0  # captured, not run
    for number in (4, 5):
        pinned[:] = number
        graph.launch(stream)
        assert number_at(emulated_cuda, stream, memory.address + 8) == number
    another = emulated_cuda.Stream()
    graph.launch(another)
    del graph
    assert number_at(emulated_cuda, another, memory.address + 8) == 5


@pytest.mark.parametrize("what", ["allocate", "synchronize", "wait for an event", "read pageable memory"])
def test_what_waits_is_not_captured(emulated_cuda: ModuleType, what: str) -> None:
    stream, memory, event = emulated_cuda.Stream(), emulated_cuda.Memory(8), emulated_cuda.Event()
    forbidden = {
        "allocate": lambda: emulated_cuda.Memory(8),
        "synchronize": stream.synchronize,
        "wait for an event": event.synchronize,
        "read pageable memory": lambda: stream.upload(np.zeros(1), memory.address),
    }
    stream.begin_capture()
    with pytest.raises(emulated_cuda.CudaError, match="when stream is capturing"):
        forbidden[what]()
    with pytest.raises(emulated_cuda.CudaError, match="cudaStreamEndCapture"):
        stream.end_capture()
    stream.write_integers(memory.address, [3])
    assert number_at(emulated_cuda, stream, memory.address) == 3
