"""A system that has less memory than the weights take: the process may be ended, so it warns before."""

from __future__ import annotations

from pathlib import Path

import pytest

from h2o_runtime.config.load_options import LoadOptions
from h2o_runtime.loaded_model import LoadedModel
from h2o_runtime.server.serve import warn_of_little_memory

MIB = 1 << 20


@pytest.mark.parametrize(("free", "warned"), [(MIB, True), (1000 * MIB, False), (None, False)])
def test_weights_beyond_the_free_memory(
    free: int | None,
    warned: bool,
    tiny_bundle: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("h2o_runtime.loaded_model.available_bytes", lambda: free)
    LoadedModel.load(tiny_bundle, LoadOptions()).close()
    assert ("1 MiB of memory are free: the system may end this process" in caplog.text) == warned


@pytest.mark.parametrize(("free", "warned"), [(MIB, True), (99 * MIB, False), (None, False)])
def test_whole_contexts_beyond_the_free_memory(
    free: int | None, warned: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("h2o_runtime.server.serve.available_bytes", lambda: free)
    monkeypatch.setattr("h2o_runtime.server.serve.resident_bytes", lambda: 5 * MIB)
    warn_of_little_memory(7 * MIB)
    assert ("takes 7 MiB and 6 MiB can be had" in caplog.text) == warned
