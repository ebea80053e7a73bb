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
from h2o_export.dense.graphs import checkpoint_tensors, tensor_format
from h2o_export.formats import MatrixFormats
from h2o_export.formats.blocks import Blocks
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.errors import ConfigError

__all__ = ["CompensatedCheckpoint", "as_stored", "calibrate"]


def calibrate(checkpoint: Checkpoint, formats: MatrixFormats, text: Path | None, folder: Path) -> Checkpoint:
    """The checkpoint as a bundle of these formats should hold it; what comparisons need goes into `folder`.

    `text` None: of Python's manual. A checkpoint whose files hold the integers that are asked for stays as it is,
    and so does one whose weights get offsets. Raises InputError for a text that cannot be read, ConfigError for a
    text where nothing would be made for it: integers that stay as they are, and weights of 8 bits where a layer's
    kind cannot be scaled.
    """
    form = formats.projections
    if type(form) is not Blocks or _holds(checkpoint, formats):
        if text is not None:
            raise ConfigError(
                "the checkpoint's own integers are kept as they are: there is nothing to calibrate, leave out "
                "`calibrate`",
                field="calibrate",
            )
        return checkpoint
    if form.bits == 4:
        return CompensatedCheckpoint.of(
            checkpoint, formats, calibration_texts(checkpoint, text, COMPENSATION_TEXTS)
        )
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


def _holds(checkpoint: Checkpoint, formats: MatrixFormats) -> bool:
    """Whether any matrix of a layer is taken unchanged from the checkpoint."""
    for name, shape in checkpoint_tensors(checkpoint.plan).items():
        format = tensor_format(name, shape, formats)
        if format is not formats.projections or not isinstance(format, Blocks):
            continue
        if format.checkpoint_blocks(checkpoint, name) is not None:
            return True
    return False
