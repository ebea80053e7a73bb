"""Attention graphs: weightless, one set for all layers. Decode's is here; a prefill policy brings its own."""

from h2o_export.attention_graphs.graph import AttentionGraph
from h2o_export.attention_graphs.step import AttentionStep, Feed, OperatorCall, Room

__all__ = ["AttentionGraph", "AttentionStep", "Feed", "OperatorCall", "Room"]
