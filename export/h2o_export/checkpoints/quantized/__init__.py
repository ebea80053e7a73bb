"""Hugging Face folders whose weights are packed integers: AWQ, GPTQ, compressed-tensors."""

from __future__ import annotations

from h2o_export.checkpoints.quantized.checkpoint import QuantizedCheckpoint

__all__ = ["QuantizedCheckpoint"]
