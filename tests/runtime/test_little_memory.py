"""A system that has less memory than some work takes: the process may be ended, so it warns before."""

from __future__ import annotations

from pathlib import Path

import pytest

from h2o_runtime.config.load_options import LoadOptions
from h2o_runtime.loaded_model import LoadedModel
from h2o_runtime.process import warn_of_little_memory

MIB = 1 << 20


@pytest.mark.parametrize(("free", "warned"), [(MIB, True), (1000 * MIB, False), (None, False)])
def test_weights_beyond_the_free_memory(
    free: int | None,
    warned: bool,
    tiny_bundle: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("h2o_runtime.process.available_bytes", lambda: free)
    LoadedModel.load(tiny_bundle, LoadOptions()).close()
    assert ("1 MiB of memory can be had: the system may end this process" in caplog.text) == warned


@pytest.mark.parametrize(("free", "warned"), [(MIB, True), (99 * MIB, False), (None, False)])
def test_what_the_process_has_counts_too(
    free: int | None, warned: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("h2o_runtime.process.available_bytes", lambda: free)
    warn_of_little_memory("the server takes", 7 * MIB, "give a smaller --ctx-size", held=5 * MIB)
    assert ("takes 7 MiB and 6 MiB of memory can be had" in caplog.text) == warned
    assert ("; give a smaller --ctx-size" in caplog.text) == warned
