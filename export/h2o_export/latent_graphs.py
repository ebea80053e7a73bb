"""Small graphs of latent attention: between dense graphs' queries and latents, and their forms in attention.

A layer has three: `absorb` and `contract` around attention to the latents themselves, `expand` before attention to
keys and values of every head. W_uk and W_uv are stored once, each for two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir
import torch
from torch import Tensor, nn

from h2o_export.checkpoints import Checkpoint
from h2o_export.config import ModelConfig
from h2o_export.formats import FLOATS
from h2o_export.formats.floats import to_dtype
from h2o_export.layers.latent import Absorb, Contract, Expand
from h2o_export.trace import OPSET, example_inputs, trace
from h2o_export.weights import StoredTensor, WeightFile
from h2o_runtime.manifest import FileSpec, FreeSize, FreeSizes, GraphSpec, TensorSpec

LATENT = ".self_attn.kv_b_proj.weight"  # of a checkpoint: a head's W_uk above its W_uv, head after head


@dataclass(frozen=True)
class LatentStep:
    """One of the three. `step` is whether decode runs it."""

    name: str
    module: type[nn.Module]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    step: bool

    def spec(self, layer: int, weights: tuple[str, ...]) -> GraphSpec:
        name = f"{self.name}_{layer:02d}"
        free = FreeSizes(sizes=(FreeSize(name="n", counts="rows"),), step=self.step)
        return GraphSpec(
            name=name,
            file=f"onnx/{name}.onnx",
            kind="latent",
            inputs=self.inputs,
            outputs=self.outputs,
            weights=weights,
            free=free,
        )


def latent_steps(config: ModelConfig, dtype: str) -> tuple[LatentStep, ...]:
    """absorb, contract, expand."""
    latent, heads = config.latent, config.query_heads
    assert latent is not None

    def rows(name: str, *row: int) -> TensorSpec:
        return TensorSpec(name=name, dtype=dtype, shape=("n", *row))  # type: ignore[arg-type]

    q, attention = rows("q", heads, latent.query_size), rows("attention", heads, latent.value_size)
    absorbed, context = rows("absorbed", heads, latent.row_size), rows("context", heads, latent.rank)
    expanded = rows("k", heads, latent.query_size), rows("v", heads, latent.value_size)
    return (
        LatentStep("absorb", Absorb, (q,), (absorbed,), step=True),
        LatentStep("contract", Contract, (context,), (attention,), step=True),
        LatentStep("expand", Expand, (rows("latents", 1, latent.row_size),), expanded, step=False),
    )


def latent_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Tensors of a checkpoint that these graphs hold, with their shapes."""
    return {_source(layer): _shape(config) for layer in range(config.layers if config.latent else 0)}


class LatentExporter:
    """Writes the graphs and weights of every layer into the folder of graphs.

    opset  version of ONNX's operators, as the other graphs of the bundle have it
    """

    def __init__(self, checkpoint: Checkpoint, dtype: str, folder: Path, opset: int = OPSET) -> None:
        self.checkpoint = checkpoint
        self.dtype = dtype
        self.folder = folder
        self.opset = opset
        self.files: dict[str, FileSpec] = {}  # weight files by their path in the bundle

    def export(self, progress: Callable[[str], None]) -> Iterator[GraphSpec]:
        """`progress` is called with the name of each layer's part as it begins."""
        config = self.checkpoint.config
        steps = [(step, *self._trace(step)) for step in latent_steps(config, self.dtype)]
        for layer in range(config.layers):
            progress(f"latent_{layer:02d}")
            stored, file = self._store(layer)
            for step, model, parameters in steps:
                for value in parameters:
                    stored[str(value.name)].bind(value, self.folder)
                spec = step.spec(layer, (f"onnx/{file}",))
                model.graph.name = spec.name
                (self.folder / f"{spec.name}.onnx").write_bytes(ir.to_proto(model).SerializeToString())
                yield spec

    def _trace(self, step: LatentStep) -> tuple[ir.Model, list[ir.Value]]:
        with torch.device("meta"):
            module = step.module(self.checkpoint.config).to(FLOATS[self.dtype].dtype)
            examples = example_inputs(step.inputs)
        model, parameters = trace(module, examples, [spec.name for spec in step.outputs], step.name)
        model.opset_imports[""] = self.opset
        return model, parameters

    def _store(self, layer: int) -> tuple[dict[str, StoredTensor], str]:
        file = f"weights/latent_{layer:02d}.bin"
        with WeightFile(self.folder, file) as out:
            stored = {name: out.add(tensor) for name, tensor in self._matrices(layer).items()}
        self.files[f"onnx/{file}"] = out.spec()
        return stored, file

    def _matrices(self, layer: int) -> dict[str, Tensor]:
        """keys: W_uk [Hq, dn, r]; values: W_uv [Hq, r, dv]."""
        config, name = self.checkpoint.config, _source(layer)
        assert config.latent is not None
        both = to_dtype(self.checkpoint.tensor(name, _shape(config)), FLOATS[self.dtype].dtype, name)
        split = [config.latent.nope_size, config.latent.value_size]
        keys, values = torch.split(both.view(config.query_heads, -1, config.latent.rank), split, dim=1)
        return {"keys": keys, "values": values.transpose(1, 2)}


def _source(layer: int) -> str:
    return f"model.layers.{layer}{LATENT}"


def _shape(config: ModelConfig) -> tuple[int, ...]:
    assert config.latent is not None
    return config.query_heads * (config.latent.nope_size + config.latent.value_size), config.latent.rank
