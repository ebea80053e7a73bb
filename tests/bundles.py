"""Bundles of the random checkpoints, each exported once per test session."""

from __future__ import annotations

import fcntl
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from tests import traces
from tests.reference import checkpoints, llama

IntArray = NDArray[np.int64]
NIGHTLY = ("llama-g8-d64", "mistral-g4-d128", "llama-g2-d48")  # graphs of other shapes, in other sizes
EACH_SHAPE = [
    pytest.param(name, marks=pytest.mark.nightly if name in NIGHTLY else ()) for name in checkpoints.SHAPES
]


def export(
    checkpoint: Path,
    bundle: Path,
    dtype: Literal["float32", "float16"] = "float32",
    context: int | None = None,
    adapter: Path | None = None,
    **options: Any,
) -> Path:
    """Export a checkpoint folder, without validation, and return the bundle's folder."""
    from h2o_export.checkpoints import open_checkpoint
    from h2o_export.exporter import ExportOptions, write_bundle
    from h2o_export.staging import staged_folder

    traces.share()
    options.setdefault("weights", "float")
    options.setdefault("calibrated", "calibrate" in options)  # it takes seconds
    chosen = ExportOptions(checkpoint=str(checkpoint), output=bundle, dtype=dtype, **options)
    with staged_folder(bundle, chosen.force) as folder:
        opened = open_checkpoint(str(checkpoint), context, adapter=adapter)
        write_bundle(opened, chosen, folder, progress=lambda stage: None)
    return bundle


def named(root: Path, name: str, variant: str = "", **options: Any) -> tuple[Path, Path]:
    """Checkpoint and bundle of `checkpoints.SHAPES[name]` below `root`, made by whoever comes first.

    A bundle with other than the default options of `export` is a variant with a name of its own.
    """
    folder = root / f"checkpoint-{name}"
    bundle = root / f"bundle-{name}{variant}"
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            checkpoints.make_named(folder, name)
        if not bundle.exists():
            export(folder, bundle, **options)
    return folder, bundle


def reference_model(checkpoint: Path) -> llama.Model:
    """The float64 model with its RoPE angles rounded to float32, as transformers and the bundle have them."""
    from h2o_export.checkpoints import open_checkpoint

    model = llama.load_model(checkpoint)
    rope = open_checkpoint(str(checkpoint)).config.rope
    return replace(model, inv_freq=rope.inverse_frequencies(model.head_size))  # type: ignore[arg-type]


def random_ids(length: int, seed: int = 0, vocab: int = checkpoints.TOKENIZER_VOCAB) -> IntArray:
    return np.random.default_rng(seed).integers(2, vocab, length)


def relative_error(actual: NDArray[Any], expected: NDArray[Any]) -> float:
    """Largest difference over the largest expected value."""
    return float(np.abs(actual - expected).max() / np.abs(expected).max())
