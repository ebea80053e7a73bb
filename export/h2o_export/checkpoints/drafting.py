"""Checkpoints whose config.json names a layer that drafts tokens, which their files need not have."""

from __future__ import annotations

from dataclasses import replace

from h2o_export.checkpoints.base import Checkpoint

MERGING = "mtp.fc.weight"  # a tensor of every such layer


def with_present_draft(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint, whose configuration has a draft layer only where its files have it."""
    config = checkpoint.config
    if not config.drafts or MERGING in checkpoint.unused(()):
        return checkpoint
    return replace(checkpoint, config=replace(config, drafts=False))
