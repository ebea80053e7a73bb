"""A system that has less memory than an export takes: it is told before."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

from h2o_export.checkpoints import open_checkpoint
from h2o_export.exporter import ExportOptions
from h2o_export.memory import warn_of_work, work_bytes


@pytest.mark.parametrize("free", [0, 1 << 40, None])
@pytest.mark.parametrize(
    ("weights", "calibrated", "validate", "says"),
    [
        ("float", True, True, "--no-validate takes less"),
        ("float", True, False, "for one tensor"),
        ("int8", True, False, "calibrate=none in --weights takes less"),
        ("int4", True, True, "--no-validate with calibrate=none in --weights takes less"),
        ("int8", False, False, "for one tensor"),
    ],
)
def test_work_beyond_the_free_memory(
    free: int | None,
    weights: str,
    calibrated: bool,
    validate: bool,
    says: str,
    small_checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("h2o_runtime.process.available_bytes", lambda: free)
    options = ExportOptions(str(small_checkpoint), tmp_path, weights=weights, calibrated=calibrated)
    warn_of_work(open_checkpoint(str(small_checkpoint)).plan, options, validate)
    assert (says in caplog.text) == (free == 0)
    assert bool(caplog.records) == (free == 0)


def test_an_export_takes_the_largest_layer_or_tensor_in_float32(small_checkpoint: Path) -> None:
    plan = open_checkpoint(str(small_checkpoint)).plan
    tensors = load_file(small_checkpoint / "model.safetensors")
    layer = sum(tensor.numel() for name, tensor in tensors.items() if name.startswith("model.layers.1."))
    largest = max(tensor.numel() for tensor in tensors.values())
    assert work_bytes(plan, whole_layers=True) == 4 * max(layer, largest)
    assert work_bytes(plan, whole_layers=False) == 4 * largest
