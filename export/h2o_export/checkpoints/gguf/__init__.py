"""GGUF files, the format of llama.cpp: configuration, tokenizer and weights in one file, or in shards."""

from __future__ import annotations

from h2o_export.checkpoints.gguf.checkpoint import GGUFCheckpoint

__all__ = ["GGUFCheckpoint"]
