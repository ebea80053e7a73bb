"""Load options that are refused or warned of, and what loading does ahead of the first prompt."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import bundles

from h2o_runtime import Generator
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.caches import Cache, Contiguous, Paged
from h2o_runtime.errors import BackendError, ConfigError
from h2o_runtime.execution.forward import WARM_UP_ROWS, Forward
from h2o_runtime.loaded_model import LoadedModel
from h2o_runtime.schedule import Span


@pytest.fixture(scope="module")
def bundle(shared_folder: Path) -> Path:
    return bundles.named(shared_folder, "llama-g2-d64-llama3")[1]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"context": 0}, "context must be from 1 to"),
        ({"threads": 0}, "threads must be at least 1"),
        ({"attention": "fast"}, "attention must be one of"),
    ],
)
def test_bad_load_options_are_named(bundle: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        Generator.load(bundle, **options)
    assert caught.value.field in options


def test_a_context_beyond_the_models_is_allowed_with_a_warning(
    bundle: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Generator.load(bundle, context=5000) as generator:
        assert generator.context == 5000
    assert "beyond the 4096 positions" in caplog.text
    with Generator.load(bundle) as generator:
        assert generator.context == 4096


def test_a_context_beyond_the_end_of_rope_is_refused(bundle: Path, tmp_path: Path) -> None:
    opened = Bundle.open(bundle)
    model = opened.manifest.model.model_copy(update={"rope_ends": True})
    folder = shutil.copytree(bundle, tmp_path / "bundle", copy_function=os.link)
    (folder / "manifest.json").unlink()
    opened.manifest.model_copy(update={"model": model}).write(folder)
    with pytest.raises(
        ConfigError, match=r"at most 4,096 tokens, but is 4,097: .*RoPE.*export the model again"
    ):
        Generator.load(folder, context=4097)


def test_missing_kernels_are_told_with_what_to_do(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h2o_plugins._cpu", None)
    with pytest.raises(
        BackendError, match=r"^the native CPU kernels are not part of this installation: build"
    ):
        Generator.load(bundle, attention="native")
    with Generator.load(bundle, context=64) as generator:
        assert generator.spec.provider.name == "functions"


@pytest.mark.parametrize("cache", [Contiguous(), Paged()])
def test_loading_reads_a_short_prompt_in_every_layer_and_leaves_nothing(
    bundle: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system gives memory to a cache when it is written: not during the first prompt."""
    written: list[tuple[int, int]] = []  # layers and rows
    dense, ids = Forward.dense, bundles.random_ids(90)

    def told(self: Forward, layer: int, tile: Span, *rest: Any) -> None:
        written.append((layer, len(tile)))
        dense(self, layer, tile, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Forward, "dense", told)
        warm = Generator.load(bundle, context=100, cache=cache)
    with warm:
        assert written == [(layer, WARM_UP_ROWS) for layer in range(warm.model.layers)]
        assert warm.length == 0
        logits = warm.prefill(ids)
        assert warm.reused == 0
    monkeypatch.setattr(Forward, "warm_up", lambda *_: None)
    with Generator.load(bundle, context=100, cache=cache) as cold:
        np.testing.assert_array_equal(cold.prefill(ids), logits)


def test_a_failed_warm_up_frees_the_model(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[LoadedModel] = []
    close = LoadedModel.close

    def told(self: LoadedModel) -> None:
        closed.append(self)
        close(self)

    def fail(*_: object) -> None:
        raise BackendError("no room")

    monkeypatch.setattr(LoadedModel, "close", told)
    monkeypatch.setattr(Forward, "warm_up", fail)
    with pytest.raises(BackendError, match="no room"):
        Generator.load(bundle, context=100)
    assert len(closed) == 1
