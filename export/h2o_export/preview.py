"""What an export would write, computed from the checkpoint's configuration alone."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from h2o_export.checkpoints import Checkpoint
from h2o_export.dense.graphs import all_dense_graphs, dense_spec
from h2o_export.exporter import ExportOptions, model_spec
from h2o_export.policies import model_graphs
from h2o_export.validation.soundness import check_checkpoint
from h2o_runtime.bundles.manifest import GraphSpec
from h2o_runtime.execution.footprint import Footprint, cache_bytes, footprint
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.policies.prefill import PREFILL


@dataclass(frozen=True)
class ExportPreview:
    model: ModelSpec
    options: ExportOptions
    graphs: tuple[GraphSpec, ...]
    context: int
    footprint: Footprint

    @property
    def disk_bytes(self) -> int:
        """Weights; graphs and tokenizer add a few megabytes."""
        return self.model.weight_bytes

    @property
    def cache_bytes(self) -> dict[str, int]:
        """By cache and row format."""
        return cache_bytes(self.model, self.context)

    @property
    def expanded_token_bytes(self) -> int | None:
        """Bytes of a token if all heads kept their keys and values; None if values are not stored in keys."""
        specs = self.model.each_layer
        if not any(spec.shared for spec in specs):
            return None
        return np.dtype(self.model.dtype).itemsize * sum(
            spec.query_heads * (spec.query_size + spec.out_size) if spec.shared else spec.row.elements
            for spec in specs
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "checkpoint": self.options.checkpoint,
            "output": str(self.options.output),
            "model": self.model.model_dump(),
            "prefill": PREFILL.settings_of(self.options.prefill),
            "graphs": [graph.model_dump(exclude={"weights"}) for graph in self.graphs],
            "disk_bytes": self.disk_bytes,
            "context": self.context,
            "memory_bytes": asdict(self.footprint) | {"total": self.footprint.total},
            "cache_bytes": self.cache_bytes,
            "token_bytes": self.model.token_bytes,
            "expanded_token_bytes": self.expanded_token_bytes,
        }


def preview_export(
    checkpoint: Checkpoint, options: ExportOptions, context: int | None = None
) -> ExportPreview:
    """Nothing is traced or written. `context` is the number of tokens to estimate memory for.

    Raises CheckpointError for a checkpoint that contradicts itself, as the export would.
    """
    check_checkpoint(checkpoint)
    plan = checkpoint.plan
    model = model_spec(checkpoint, options.dtype, options.formats(checkpoint))
    context = context or min(plan.config.max_position_embeddings, 8192)
    graphs = [dense_spec(dense, plan, options.dtype) for dense in all_dense_graphs(plan)]
    for number, layer in enumerate(plan.layers):
        graphs += [graph.spec(number) for graph in layer.kind.small_graphs(plan.config, options.dtype)]
    graphs += [graph.spec for graph in model_graphs(options.prefill, model)]
    native = options.dtype == "float32"  # as on a CPU with our own products; float16 as on a GPU
    memory = footprint(model, context, options.prefill, native_products=native)
    return ExportPreview(model, options, tuple(graphs), context, memory)
