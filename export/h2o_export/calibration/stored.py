"""The bundle's integers as a checkpoint, to compare with what was really stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from h2o_export.checkpoints import Checkpoint
from h2o_export.checkpoints.derived import DerivedCheckpoint
from h2o_export.dense.graphs import DenseGraph, dense_graphs, parameter_source
from h2o_export.tensors import QuantizedTensor
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.bundles.onnx_model import read_model
from h2o_runtime.dense_graphs.matrices import Matrix, quantized_products


@dataclass(frozen=True)
class StoredCheckpoint(DerivedCheckpoint):
    """`original`, whose layers' matrices without offsets are blocks as `bundle` has them."""

    bundle: Bundle

    @classmethod
    def of(cls, original: Checkpoint, bundle: Bundle) -> StoredCheckpoint:
        return cls(original.path, original.source, original.config, original, bundle)

    def blocks(self, name: str) -> QuantizedTensor | None:
        for dense in dense_graphs(self.plan):
            layers = tuple(f"model.layers.{layer}." for layer in (dense.before, dense.after))
            if name.startswith(layers):
                found = self._in_graph(dense, name)
                if found is not None:
                    return found
        return self.original.blocks(name)

    def _in_graph(self, dense: DenseGraph, name: str) -> QuantizedTensor | None:
        path = self.bundle.path(self.bundle.graph(dense.name))
        graph = read_model(path).graph
        tensors: dict[str, Any] = {tensor.name: tensor for tensor in graph.initializer}
        for product in quantized_products(graph):
            if product.offset is None and parameter_source(dense, product.weight, self.plan) == name:
                matrix = Matrix.read(product, tensors, path.parent)
                return QuantizedTensor(
                    product.bits, product.block_size, matrix.q, matrix.scales.astype(np.float32)
                )
        return None
