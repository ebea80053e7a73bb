"""The dense graphs: traced once each, then bound to every layer's weights.

All middle layers are the same graph, so a model of any depth is traced three times: first, middle, last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor, nn

from h2o_export.checkpoint import Checkpoint, to_dtype
from h2o_export.config import ModelConfig
from h2o_export.modules import DenseFirst, DenseLast, DenseMiddle
from h2o_export.trace import trace
from h2o_export.weights import StoredTensor, WeightFile
from h2o_runtime.manifest import FileSpec, GraphSpec, TensorSpec

EMBEDDING = "model.embed_tokens.weight"
TORCH_DTYPES = {"float32": torch.float32, "float16": torch.float16}


@dataclass(frozen=True)
class DensePart:
    """One dense graph of the model: which module it is and which layers its weights come from."""

    name: str
    module: type[nn.Module]
    before: int | None  # the layer whose attention it follows
    after: int | None  # the layer whose q, k and v it makes

    @property
    def file(self) -> str:
        return f"onnx/{self.name}.onnx"

    @property
    def weight_file(self) -> str:
        """Relative to the folder of the graphs: ONNX allows external data only below the graph's own folder."""
        return f"weights/{self.name}.bin"


def dense_parts(config: ModelConfig) -> tuple[DensePart, ...]:
    """dense_00 … dense_n: one more than there are layers."""
    layers = config.layers
    middle = (DensePart(f"dense_{i:02d}", DenseMiddle, i - 1, i) for i in range(1, layers))
    first = DensePart("dense_00", DenseFirst, None, 0)
    return first, *middle, DensePart(f"dense_{layers:02d}", DenseLast, layers - 1, None)


def dense_interface(
    part: DensePart, config: ModelConfig, dtype: str
) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Inputs and outputs of a dense graph."""
    half = config.head_size // 2
    qkv = tuple(
        TensorSpec(name=name, dtype=dtype, shape=("n", heads, config.head_size))  # type: ignore[arg-type]
        for name, heads in (("q", config.query_heads), ("k", config.kv_heads), ("v", config.kv_heads))
    )
    rope = tuple(TensorSpec(name=name, dtype="float32", shape=("n", half)) for name in ("cos", "sin"))

    def residual(name: str) -> TensorSpec:
        return TensorSpec(name=name, dtype=dtype, shape=("n", config.hidden_size))  # type: ignore[arg-type]

    attention = TensorSpec(
        name="attention",
        dtype=dtype,  # type: ignore[arg-type]
        shape=("n", config.query_heads, config.head_size),
    )
    if part.module is DenseFirst:
        tokens = tuple(TensorSpec(name=name, dtype="int64", shape=("n",)) for name in ("tokens", "positions"))
        return tokens, (residual("residual_out"), *rope, *qkv)
    if part.module is DenseMiddle:
        return (attention, residual("residual"), *rope), (residual("residual_out"), *qkv)
    logits = TensorSpec(name="logits", dtype="float32", shape=("n", config.vocab_size))
    return (attention, residual("residual")), (logits,)


def parameter_source(part: DensePart, parameter: str, tied: bool) -> str:
    """The checkpoint's name of a module's parameter."""
    if parameter == "embed_tokens.weight" or (parameter == "lm_head.weight" and tied):
        return EMBEDDING
    if parameter == "lm_head.weight":
        return parameter
    if parameter == "norm.weight":
        return "model.norm.weight"
    head, _, rest = parameter.partition(".")
    if head == "qkv":
        return f"model.layers.{part.after}.self_attn.{rest}"
    if head == "after":
        rest = f"self_attn.{rest}" if rest.startswith("o_proj") else rest
        return f"model.layers.{part.before}.{rest}"
    return f"model.layers.{part.after}.{parameter}"  # input_layernorm


class DenseExporter:
    """Writes dense graphs and weight files below one bundle folder, one part after the other."""

    def __init__(self, checkpoint: Checkpoint, dtype: str, bundle: Path) -> None:
        self.checkpoint = checkpoint
        self.dtype = dtype
        self.folder = bundle / "onnx"
        self.files: dict[str, FileSpec] = {}  # weight files by their path in the bundle
        self._traced: dict[type[nn.Module], tuple[ir.Model, list[ir.Value]]] = {}
        self._embedding: StoredTensor | None = None

    def export(self, progress: Callable[[str], None]) -> Iterator[GraphSpec]:
        """Write every part; `progress` is called with the name of each as it begins."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for part in dense_parts(self.checkpoint.config):
            progress(part.name)
            yield self._export_part(part)

    def _export_part(self, part: DensePart) -> GraphSpec:
        if part.module not in self._traced:
            self._traced[part.module] = trace_part(part, self.checkpoint.config, self.dtype)
        model, parameters = self._traced[part.module]
        weights = self._store(part, parameters)
        for value in parameters:
            assert value.name is not None
            weights[value.name].bind(value, self.folder)
        model.graph.name = part.name
        (self.folder / f"{part.name}.onnx").write_bytes(ir.to_proto(model).SerializeToString())
        inputs, outputs = dense_interface(part, self.checkpoint.config, self.dtype)
        files = sorted({f"onnx/{stored.file}" for stored in weights.values()})
        return GraphSpec(
            name=part.name, file=part.file, kind="dense", inputs=inputs, outputs=outputs, weights=tuple(files)
        )

    def _store(self, part: DensePart, parameters: list[ir.Value]) -> dict[str, StoredTensor]:
        """Stream the part's weights into its file. A tied embedding is stored once, in a file of its own."""
        stored: dict[str, StoredTensor] = {}
        with WeightFile(self.folder, part.weight_file) as file:
            for value in parameters:
                assert value.name is not None
                assert value.shape is not None
                shape = tuple(value.shape.numpy())
                source = parameter_source(part, value.name, self.checkpoint.config.tied)
                if value.name == "inv_freq":
                    stored[value.name] = file.add(self._inverse_frequencies())
                elif source == EMBEDDING:
                    stored[value.name] = self._store_embedding(shape)
                else:
                    stored[value.name] = file.add(self._read(source, shape))
        self.files[f"onnx/{part.weight_file}"] = file.spec()
        return stored

    def _store_embedding(self, shape: tuple[int, ...]) -> StoredTensor:
        if self._embedding is None:
            with WeightFile(self.folder, "weights/embedding.bin") as file:
                self._embedding = file.add(self._read(EMBEDDING, shape))
            self.files["onnx/weights/embedding.bin"] = file.spec()
        return self._embedding

    def _read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        return to_dtype(self.checkpoint.tensor(name, shape), TORCH_DTYPES[self.dtype], name)

    def _inverse_frequencies(self) -> Tensor:
        config = self.checkpoint.config
        return torch.from_numpy(np.ascontiguousarray(config.rope.inverse_frequencies(config.head_size)))


def trace_part(part: DensePart, config: ModelConfig, dtype: str) -> tuple[ir.Model, list[ir.Value]]:
    """Trace one kind of part on the meta device: no weight is in memory."""
    inputs, outputs = dense_interface(part, config, dtype)
    with torch.device("meta"):
        module = part.module(config).to(TORCH_DTYPES[dtype])
        if isinstance(module, DenseFirst):
            module.inv_freq.data = module.inv_freq.data.float()  # angles lose all meaning in float16
        examples = {spec.name: _example(spec) for spec in inputs}
    return trace(module, examples, [spec.name for spec in outputs], part.name)


def _example(spec: TensorSpec) -> Tensor:
    shape = [8 if isinstance(size, str) else size for size in spec.shape]  # any n above 1 traces alike
    return torch.empty(shape, dtype=getattr(torch, spec.dtype))
