"""Attention providers execute the operators of ONNX domain `h2o`."""

from h2o_runtime.attention.provider import AttentionProvider, AttentionShape, NextMemory, PartialSoftmax

__all__ = ["AttentionProvider", "AttentionShape", "NextMemory", "PartialSoftmax"]
