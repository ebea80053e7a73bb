"""Expanded latents on a GPU: what one layer's attention still reads, the next layer must not overwrite.

A double executes the engines, on streams whose work waits and meets at random.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from tests import bundles, latent_models
from tests.engine_runtime import RuntimeDouble, plugin_library

import h2o_runtime.engines.machine as machine_module
from h2o_export.engines.build import build
from h2o_export.engines.selection import BuildOptions, select_engines
from h2o_runtime import Generator, PrefillConfig
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.engines import Machine

N, BATCH, CONTEXT = 64, 16, 128
ORDERS = 6  # prompts, each of which meets other random orders
CONFIGS = {
    "full": PrefillConfig(policy="full", batch_size=BATCH),
    "dense tail": PrefillConfig(chunk_size=16, batch_size=BATCH, local=4, heavy=6, dense_tail=24),
}


@pytest.fixture
def double(
    shared_folder: Path, tmp_path: Path, emulated_cuda: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> RuntimeDouble:
    checkpoint = latent_models.golden_checkpoint(shared_folder, latent_models.MODELS[0])
    bundle = Bundle.open(bundles.export(checkpoint, tmp_path / "bundle", prefill=CONFIGS["dense tail"]))
    double = RuntimeDouble(emulated_cuda, bundle)
    monkeypatch.setitem(sys.modules, "tensorrt", double)
    monkeypatch.setattr(machine_module, "compute_capability", lambda: 87)
    monkeypatch.setattr(machine_module, "tensorrt_plugins", lambda: plugin_library(tmp_path))
    options = BuildOptions("tensorrt", max_context=CONTEXT, batch_size=BATCH)
    build(select_engines(bundle, options), Machine.here("tensorrt"), lambda name: None)
    return double


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_no_layer_overwrites_keys_that_the_one_before_still_reads(
    config: PrefillConfig, double: RuntimeDouble
) -> None:
    folder = double.bundle.folder
    with (
        Generator.load(folder, backend="tensorrt", context=CONTEXT, layers={"latent": "expanded"}) as gpu,
        Generator.load(folder, context=CONTEXT, device="cpu", layers={"latent": "expanded"}) as cpu,
    ):
        for seed in range(ORDERS):
            ids = np.random.default_rng(seed).integers(0, 128, N)
            expected = cpu.prefill(ids, config)
            found = gpu.prefill(ids, config)
            assert np.abs(found - expected).max() <= 2e-5 * np.abs(expected).max(), f"prompt {seed}"
    assert double.failures == []
