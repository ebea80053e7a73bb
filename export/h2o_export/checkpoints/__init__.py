"""Checkpoints by the kind of their path. A new kind is a file in this folder and its class in `KINDS`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from h2o_export.checkpoint_files import HUB_PATTERNS, locate
from h2o_export.checkpoints.adapters import check_without_adapter
from h2o_export.checkpoints.arranged import arranged
from h2o_export.checkpoints.checkpoint import Checkpoint, CheckpointInFiles
from h2o_export.checkpoints.drafting import with_present_draft
from h2o_export.checkpoints.gguf import GGUFCheckpoint
from h2o_export.checkpoints.layer_slices import with_layer_slices
from h2o_export.checkpoints.lora import merged
from h2o_export.checkpoints.quantized import QuantizedCheckpoint
from h2o_export.checkpoints.safetensors import SafetensorsCheckpoint
from h2o_export.checkpoints.stacked import with_single_experts
from h2o_export.checkpoints.templated import templated
from h2o_runtime.errors import CheckpointError

__all__ = ["KINDS", "Checkpoint", "open_checkpoint"]

# The first kind that accepts a path opens it; a folder of safetensors comes last, and accepts any folder.
KINDS: tuple[type[CheckpointInFiles], ...] = (GGUFCheckpoint, QuantizedCheckpoint, SafetensorsCheckpoint)


def open_checkpoint(
    source: str,
    context: int | None = None,
    *,
    download: bool = False,
    adapter: Path | None = None,
    chat_template: Path | None = None,
) -> Checkpoint:
    """Open a path or a hub name, for texts of at most `context` tokens; None: the model's maximum.

    download: whether the hub is asked for a name; if not, only the hub's cache on this machine is. adapter: the
    folder of a LoRA adapter to merge into its matrices. chat_template: a Jinja file in place of its own template.
    Raises ConfigError if `context` is above that maximum, CheckpointError for missing or broken files,
    UnsupportedModelError for an unknown model, InputError for a template that cannot be read.
    """
    path = locate(source, HUB_PATTERNS, download)
    if adapter is None or adapter.resolve() != path.resolve():
        check_without_adapter(path, source)
    for kind in KINDS:
        if kind.takes(path):
            opened = kind.open(path, source)
            opened = replace(opened, config=opened.config.limited(context))
            opened = with_present_draft(opened)
            in_matrices = with_layer_slices(with_single_experts(opened), opened)
            return templated(arranged(merged(in_matrices, opened, adapter)), chat_template)
    raise CheckpointError(
        f"{source} is a file; give the folder that holds config.json and the safetensors files, or a GGUF file"
    )
