"""Calibrates weights to the activations of a text: scaled for 8 bits, compensated rounding for 4."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file

from h2o_export.calibration.compensation import TEXTS as COMPENSATION_TEXTS
from h2o_export.calibration.compensation import CompensatedCheckpoint
from h2o_export.calibration.scaling import FILE, ScaledCheckpoint, save_factors, scaling_factors
from h2o_export.calibration.scaling import TEXTS as SCALING_TEXTS
from h2o_export.calibration.stored import StoredCheckpoint
from h2o_export.calibration.text import calibration_texts
from h2o_export.checkpoints import Checkpoint
from h2o_export.dense.weight_spec import matrices_of_layers
from h2o_export.formats import MatrixFormats
from h2o_export.formats.blocks import Blocks
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.errors import ConfigError

__all__ = ["CompensatedCheckpoint", "as_stored", "calibrate"]


def calibrate(checkpoint: Checkpoint, formats: MatrixFormats, text: Path | None, folder: Path) -> Checkpoint:
    """The checkpoint as a bundle of these formats should hold it; what comparisons need goes into `folder`.

    `text` None: of Python's manual. Matrices of 4 bits that the checkpoint's files hold stay as they are, and so do
    all of 8 bits if the files hold any. Raises InputError for a text that cannot be read, ConfigError for a text
    where nothing would be made for it: integers that stay as they are, and weights of 8 bits where a layer's kind
    cannot be scaled.
    """
    symmetric = _symmetric(checkpoint, formats)
    four_bits = {name for name, form in symmetric.items() if form.bits == 4}
    if rounded := {name for name in four_bits if not symmetric[name].keeps(checkpoint.integers(name))}:
        texts = calibration_texts(checkpoint, text, COMPENSATION_TEXTS)
        return CompensatedCheckpoint.of(checkpoint, formats, rounded, texts)
    eight_bits = symmetric.keys() - four_bits
    if not eight_bits or any(symmetric[name].checkpoint_blocks(checkpoint, name) for name in eight_bits):
        if text is not None:
            raise ConfigError(
                "the checkpoint's own integers are kept as they are: there is nothing to calibrate, leave out "
                "`calibrate`",
                field="calibrate",
            )
        return checkpoint
    unscaled = {layer.kind.title for layer in checkpoint.plan.layers if not layer.kind.scalable}
    if checkpoint.config.experts is not None and not unscaled:
        unscaled = {"mixtures of experts"}
    if unscaled:
        if text is not None:
            raise ConfigError(
                f"8-bit weights of a model with {' and '.join(unscaled)} are rounded to the nearest: leave out "
                "`calibrate`, or take `weights=int4`",
                field="calibrate",
            )
        return checkpoint
    factors = scaling_factors(checkpoint, calibration_texts(checkpoint, text, SCALING_TEXTS))
    save_factors(factors, folder)
    return ScaledCheckpoint.of(checkpoint, factors)


def as_stored(checkpoint: Checkpoint, bundle: Bundle) -> Checkpoint:
    """The checkpoint with the scaled channels of `bundle`, and with its integers if rounding was
    compensated.
    """
    factors = bundle.folder / FILE
    scaled = ScaledCheckpoint.of(checkpoint, load_file(factors)) if factors.is_file() else checkpoint
    weights = bundle.manifest.model.weights
    return StoredCheckpoint.of(scaled, bundle) if weights is not None and weights.compensated else scaled


def _symmetric(checkpoint: Checkpoint, formats: MatrixFormats) -> dict[str, Blocks]:
    """Formats of layers' matrices that are integers without offsets."""
    forms = {name: formats.of_layers(name) for name in matrices_of_layers(checkpoint.plan)}
    return {name: form for name, form in forms.items() if type(form) is Blocks}
