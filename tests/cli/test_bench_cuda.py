"""h2o-bench's systems on a GPU, whose place the emulation takes."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tests import bundles

from h2o_cli.bench import machine
from h2o_cli.bench.benchmark_model import BenchmarkModel
from h2o_cli.bench.contestants import Entry, attentions, models
from h2o_cli.bench.machine import MachineRates, measure_gpu_rates
from h2o_cli.bench.systems.system import Absent
from h2o_cli.bench.worker import SYSTEMS
from h2o_runtime.policies.prefill import PREFILL, Query

CONFIG = Query(chunk_size=48, batch_size=96, local=12, heavy=20, dense_tail=20)
PHASES = {"dense", "phase1", "phase2", "tail"}


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch, emulated_cuda: ModuleType) -> None:
    monkeypatch.setenv("H2O_EMULATION_EAGER", "1")


@pytest.fixture
def settings(shared_folder: Path) -> dict[str, Any]:
    bundle = bundles.named(shared_folder, "llama-g2-d64-llama3")[1]
    return {
        "bundle": str(bundle),
        "threads": 1,
        "prefill": PREFILL.settings_of(CONFIG),
        "backend": "onnxruntime",
        "device": "cuda",
        "attention": "auto",
        "dense_form": "auto",
        "attention_precision": "auto",
        "dense_precision": "float32",
    }


def test_the_whole_model(settings: dict[str, Any]) -> None:
    system = SYSTEMS["h2o"](settings)
    system.open(200)
    assert 0 <= system.prefill(np.arange(3, 150)) < 512
    system.decode(5)
    phases = system.phases()
    assert set(phases) == PHASES
    assert min(phases.values()) > 0


def test_attention_of_one_layer(settings: dict[str, Any]) -> None:
    system = SYSTEMS["attention"](settings)
    system.open(150)
    assert system.prefill(np.arange(150)) == -1
    phases = system.phases()
    assert phases["dense"] == 0
    assert min(phases[name] for name in ("phase1", "phase2", "tail")) > 0


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_gpus_own_speed(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of products in the model's dtype: a GPU multiplies halves ten times as fast."""
    monkeypatch.setattr(machine, "FLOATS", 1 << 20)
    monkeypatch.setattr(machine, "GPU_SIDE", 256)
    rates = MachineRates(**measure_gpu_rates(dtype, repetitions=2))
    assert rates.flops is not None
    assert rates.flops_by == f"onnxruntime, {dtype}"
    assert rates.flops > 1e6 < rates.bandwidth
    assert rates.gpu is not None
    assert rates.in_words().endswith(f"GB/s (device copy) on {rates.gpu}")


def test_without_a_matrix_product_only_the_bandwidth_is_known(
    emulated_cuda: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under TensorRT alone: the ONNX Runtime that is installed has no CUDA provider."""
    monkeypatch.setattr(machine, "FLOATS", 1 << 20)
    monkeypatch.setattr(emulated_cuda, "MEMORY", "cuda")
    rates = MachineRates(**measure_gpu_rates("float32", repetitions=2))
    assert rates.flops is None
    assert rates.in_words().startswith(f"{rates.bandwidth / 1e9:,.1f} GB/s")


def test_peers_that_are_measured_on_the_cpu_are_absent(settings: dict[str, Any], tmp_path: Path) -> None:
    model = BenchmarkModel.open(settings["bundle"], tmp_path, "float32")
    entry = Entry(model, 1, CONFIG, "onnxruntime", "cuda", "auto")
    for peer in ("llama.cpp", "onnxruntime-genai", "openvino-genai"):
        for contestant in models(entry, (peer,), decoding=False)[2:]:
            with pytest.raises(Absent, match="--device cpu"):
                contestant.ready()
    for contestant in (*models(entry, ("transformers",), False)[2:], *attentions(entry, ("torch SDPA",))[2:]):
        ready = contestant.ready()
        with pytest.raises(Absent, match="this torch has no CUDA"):
            SYSTEMS[ready.system](ready.settings)
    (gqa,) = attentions(entry, ("onnxruntime GQA",))[2:]
    with pytest.raises(Absent, match="--device cpu"):
        SYSTEMS[gqa.system](gqa.settings)
