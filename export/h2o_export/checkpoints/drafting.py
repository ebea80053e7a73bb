"""Checkpoints whose config.json names a layer that drafts tokens, which their files need not have."""

from __future__ import annotations

import logging
from dataclasses import replace

import torch

from h2o_export.architecture.draft import DraftLayer
from h2o_export.checkpoints.checkpoint import Checkpoint
from h2o_export.checkpoints.safetensors import SafetensorsCheckpoint

log = logging.getLogger(__name__)

COMPARED = 64  # rows of a copy


def with_present_draft(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint, whose configuration has a draft layer only where its files have it, with the model's own
    embedding and head."""
    draft = checkpoint.config.draft
    if draft is None:
        return checkpoint
    present = all(_has(checkpoint, f"{module}.weight") for module in draft.around.values())
    if present and not _differs(checkpoint, draft):
        return checkpoint
    if present:
        log.warning(
            "%s: its draft layer has an embedding or a head of its own, which is not supported: it is left out",
            checkpoint.source,
        )
    return replace(checkpoint, config=replace(checkpoint.config, draft=None))


def _has(checkpoint: Checkpoint, tensor: str) -> bool:
    return checkpoint.unused(()) != checkpoint.unused((tensor,))


def _differs(checkpoint: Checkpoint, draft: DraftLayer) -> bool:
    """Whether its copies of embedding and head are other matrices. Copies are equal in all rows, so a few tell."""
    if not isinstance(checkpoint, SafetensorsCheckpoint):
        return False
    rows = (slice(0, COMPARED),)
    return any(
        not torch.equal(checkpoint.read(copy, rows), checkpoint.read(own, rows))
        for own, copy in draft.copies.items()
        if _has(checkpoint, own) and _has(checkpoint, copy)
    )
