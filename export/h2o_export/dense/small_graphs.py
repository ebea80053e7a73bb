"""Small graphs that some layer kinds have beside the dense ones, between queries, cache rows and attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import onnx_ir as ir
import torch

from h2o_export.checkpoints import Checkpoint
from h2o_export.dense.trace import trace
from h2o_export.formats import FLOATS
from h2o_export.layers import LayerKind
from h2o_export.layers.kind import SmallGraph
from h2o_export.operators.opset import OPSET
from h2o_export.weights import StoredTensor, WeightFile
from h2o_runtime.bundles.manifest import FileSpec, GraphSpec


class SmallGraphExporter:
    """Writes the small graphs and their weights into the folder of graphs, layer by layer.

    opset  version of ONNX's operators, as the other graphs of the bundle have it
    """

    def __init__(self, checkpoint: Checkpoint, dtype: str, folder: Path, opset: int = OPSET) -> None:
        self.checkpoint = checkpoint
        self.dtype = dtype
        self.folder = folder
        self.opset = opset
        self.files: dict[str, FileSpec] = {}  # weight files by their path in the bundle
        self._traced: dict[str, list[tuple[SmallGraph, ir.Model, list[ir.Value]]]] = {}

    def export(self, progress: Callable[[str], None]) -> Iterator[GraphSpec]:
        """`progress` is called with a name for each layer's graphs before they are written."""
        plan = self.checkpoint.plan
        for layer, kind in enumerate(plan.kinds):
            drafts = layer == len(plan.layers)  # it reads no prompt
            graphs = self._graphs(kind)
            if not graphs:
                continue
            progress(f"{kind.name}_{layer:02d}")
            stored, file = self._store(kind, layer)
            for graph, model, parameters in graphs:
                if drafts and not graph.step:
                    continue
                for value in parameters:
                    stored[str(value.name)].bind(value, self.folder)
                spec = graph.spec(layer, (f"onnx/{file}",), drafts)
                model.graph.name = spec.name
                (self.folder / f"{spec.name}.onnx").write_bytes(ir.to_proto(model).SerializeToString())
                yield spec

    def _graphs(self, kind: LayerKind) -> list[tuple[SmallGraph, ir.Model, list[ir.Value]]]:
        if kind.name not in self._traced:
            graphs = kind.small_graphs(self.checkpoint.config, self.dtype)
            self._traced[kind.name] = [(graph, *self._trace(graph)) for graph in graphs]
        return self._traced[kind.name]

    def _trace(self, graph: SmallGraph) -> tuple[ir.Model, list[ir.Value]]:
        with torch.device("meta"):
            module = graph.module(self.checkpoint.config).to(FLOATS[self.dtype].dtype)
        model, parameters = trace(module, graph.inputs, [spec.name for spec in graph.outputs], graph.name)
        model.opset_imports[""] = self.opset
        return model, parameters

    def _store(self, kind: LayerKind, layer: int) -> tuple[dict[str, StoredTensor], str]:
        file = f"weights/{kind.name}_{layer:02d}.bin"
        parameters = kind.small_parameters(self.checkpoint, layer, FLOATS[self.dtype].dtype)
        with WeightFile(self.folder, file) as out:
            stored = {name: out.add(tensor) for name, tensor in parameters.items()}
        self.files[f"onnx/{file}"] = out.spec()
        return stored, file
