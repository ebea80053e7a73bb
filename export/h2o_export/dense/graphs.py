"""The dense graphs: traced once each, then bound to every layer's weights.

All middle layers are the same graph, so a model of any depth is traced three times: first, middle, last. Where
some have a mixture of experts and some have not, it is four times.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor, nn

from h2o_export.checkpoints import Checkpoint
from h2o_export.dense import layer_embedding
from h2o_export.dense.draft import DraftFirst
from h2o_export.dense.experts import lay_out_experts
from h2o_export.dense.matrices import EMBEDDING, FLOAT32, FREQUENCIES, HEAD, tensor_format
from h2o_export.dense.modules import DenseFirst, DenseLast, DenseMiddle
from h2o_export.dense.small_graphs import SmallGraphExporter
from h2o_export.dense.trace import trace
from h2o_export.formats import FLOATS, MatrixFormats, WeightFormat
from h2o_export.operators import DENSE_FUNCTIONS, DOMAIN, function_protos
from h2o_export.plan import Plan
from h2o_export.weights import StoredTensor, WeightFile
from h2o_runtime.bundles.manifest import FileSpec, FreeSize, FreeSizes, GraphSpec, TensorSpec
from h2o_runtime.layer_spec import rotation_names

Alike: TypeAlias = tuple[object, ...]
Forms: TypeAlias = tuple[tuple[tuple[bool, ...], str, str], ...]
_LAYER = re.compile(r"^model\.layers\.\d+\.")


@dataclass(frozen=True)
class DenseGraph:
    """One dense graph of the model: which module it is and which layers its weights come from."""

    name: str
    module: type[nn.Module]
    before: int | None  # the layer whose attention it follows
    after: int | None  # the layer whose q, k and v it makes
    kind: Literal["dense", "draft"] = "dense"

    def of(self, plan: Plan) -> Plan:
        """The plan whose layers `before` and `after` are."""
        own = plan.draft if self.kind == "draft" else plan
        assert own is not None
        return own

    def make(self, plan: Plan) -> nn.Module:
        """The module; what it is made of may differ from layer to layer."""
        plan = self.of(plan)
        module: nn.Module = self.module(plan) if self.before is None else self.module(plan, self.before)
        return module

    def alike(self, plan: Plan) -> Alike:
        """Dense graphs for which this is equal differ in their weights alone."""
        config = self.of(plan).config
        routed = self.before is not None and config.routed(self.before)
        whole = self.before is None or config.has_mlp(self.before)
        before, after = (None if at is None else config.kinds[at] for at in (self.before, self.after))
        rotation = None if self.after is None else config.rotation(self.after)
        sizes = tuple(
            config.layer_sizes[at]
            for at in (self.before, self.after)
            if config.layer_sizes and at is not None
        )
        return self.module, routed, whole, before, after, rotation, sizes

    @property
    def file(self) -> str:
        return f"onnx/{self.name}.onnx"

    @property
    def weight_file(self) -> str:
        """Relative to the folder of the graphs: ONNX allows external data only below the graph's own folder."""
        return f"weights/{self.name}.bin"


def dense_graphs(plan: Plan) -> tuple[DenseGraph, ...]:
    """dense_00 … dense_n: one more than there are layers."""
    layers = len(plan.layers)
    middle = (DenseGraph(f"dense_{i:02d}", DenseMiddle, i - 1, i) for i in range(1, layers))
    first = DenseGraph("dense_00", DenseFirst, None, 0)
    return first, *middle, DenseGraph(f"dense_{layers:02d}", DenseLast, layers - 1, None)


def draft_graphs(plan: Plan) -> tuple[DenseGraph, ...]:
    """draft_00 and draft_01, before and after the attention of the layer that drafts; none without it."""
    if plan.draft is None:
        return ()
    return (
        DenseGraph("draft_00", DraftFirst, None, 0, "draft"),
        DenseGraph("draft_01", DenseLast, 0, None, "draft"),
    )


def all_dense_graphs(plan: Plan) -> tuple[DenseGraph, ...]:
    """The model's own, and those of its draft layer."""
    return *dense_graphs(plan), *draft_graphs(plan)


def dense_interface(
    dense: DenseGraph, plan: Plan, dtype: str
) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Inputs and outputs of a dense graph."""
    plan = dense.of(plan)
    config = plan.config

    def residual(name: str) -> TensorSpec:
        return TensorSpec(name=name, dtype=dtype, shape=("n", config.hidden_size))  # type: ignore[arg-type]

    outputs: tuple[TensorSpec, ...] = ()
    given: tuple[TensorSpec, ...] = ()  # of the tokens before
    if dense.after is not None:
        after = plan.layers[dense.after]
        outputs, given = after.kind.interface(after.config, dtype), after.kind.given(after.config, dtype)
    attended: tuple[TensorSpec, ...] = ()
    beside: tuple[TensorSpec, ...] = ()
    if dense.before is not None:
        before = plan.layers[dense.before]
        attended = (before.kind.attended(before.config, dtype),)
        beside = before.kind.gate(before.config, dtype)
        if config.layer_embedding is not None:
            beside += (TensorSpec(name="tokens", dtype="int64", shape=("n",)), residual("embedded"))

    def angles(table: int) -> Iterator[TensorSpec]:
        shape = ("n", plan.rotary_sizes[table] // 2)
        return (TensorSpec(name=name, dtype="float32", shape=shape) for name in rotation_names(table))

    tokens = tuple(TensorSpec(name=name, dtype="int64", shape=("n",)) for name in ("tokens", "positions"))
    if dense.module is DraftFirst:
        return (*tokens, residual("hidden")), (residual("residual_out"), *outputs)
    if dense.module is DenseFirst:
        tables = (spec for table in range(len(config.rotations)) for spec in angles(table))
        return (*tokens, *given), (residual("residual_out"), *tables, *outputs)
    if dense.after is not None:
        rope = angles(config.rotation(dense.after))
        return (*attended, residual("residual"), *rope, *beside, *given), (residual("residual_out"), *outputs)
    logits = TensorSpec(name="logits", dtype="float32", shape=("n", config.vocab_size))
    hidden = (residual("hidden"),) if config.draft else ()
    return (*attended, residual("residual"), *beside), (logits, *hidden)


def dense_spec(dense: DenseGraph, plan: Plan, dtype: str, weights: tuple[str, ...] = ()) -> GraphSpec:
    """What the manifest says of a dense graph; `weights` are files of the bundle."""
    inputs, outputs = dense_interface(dense, plan, dtype)
    rows = FreeSize(name="n", counts="logits" if dense.after is None else "rows")
    return GraphSpec(
        name=dense.name,
        file=dense.file,
        kind=dense.kind,
        inputs=inputs,
        outputs=outputs,
        weights=weights,
        free=FreeSizes(sizes=(rows,), step=True),
    )


def parameter_source(dense: DenseGraph, parameter: str, plan: Plan) -> str:
    """The checkpoint's name of a module's parameter."""
    config = plan.config
    if parameter == "embed_tokens.weight" or (parameter == HEAD and config.tied):
        return EMBEDDING
    if parameter == HEAD:
        return parameter
    module, _, rest = parameter.partition(".")
    layer_names = config.draft if dense.kind == "draft" else None
    if layer_names is not None and (own := layer_names.around.get(module)):
        return f"{own}.{rest}"
    if parameter == "norm.weight":
        return "model.norm.weight"
    layer = dense.before if module == "after" else dense.after
    assert layer is not None
    in_layer = rest if module in ("qkv", "after") else parameter
    if in_layer.startswith("own."):
        return layer_embedding.source(in_layer.removeprefix("own."), layer)
    prefix = f"model.layers.{layer}." if layer_names is None else layer_names.layer
    return prefix + _name_in_layer(in_layer, dense.of(plan), layer)


def _name_in_layer(parameter: str, plan: Plan, layer: int) -> str:
    """The checkpoint's name of a parameter in a layer: who makes a module knows it."""
    module, _, rest = parameter.partition(".")
    if module in ("mlp", "layer_scalar"):
        return parameter
    if module == "experts_beside":
        return rest
    norm = getattr(plan.config.norms, module, None)
    return plan.layers[layer].kind.checkpoint_name(parameter) if norm is None else f"{norm}.{rest}"


def checkpoint_tensors(plan: Plan) -> dict[str, tuple[int, ...]]:
    """Every tensor that a model is made of, by its name in the checkpoint, with its shape."""
    found: dict[str, tuple[int, ...]] = {}
    shapes: dict[Alike, dict[str, tuple[int, ...]]] = {}
    for dense in all_dense_graphs(plan):
        alike = dense.alike(plan)
        if alike not in shapes:
            with torch.device("meta"):
                parameters = dense.make(plan).named_parameters()
            shapes[alike] = {
                name: tuple(parameter.shape)
                for name, parameter in parameters
                if not name.endswith(FREQUENCIES)
            }
        for name, shape in shapes[alike].items():
            found[parameter_source(dense, name, plan)] = shape
    for layer, kind in enumerate(plan.kinds):
        found |= kind.small_tensors(plan.config, layer)
    return found


@dataclass(frozen=True)
class TracedGraph:
    """One kind of dense graph, traced. `stands_for` names, for each parameter, the initializers that hold it."""

    model: ir.Model
    parameters: tuple[ir.Value, ...]  # as the module has them
    stands_for: dict[str, tuple[ir.Value, ...]]


class DenseExporter:
    """Writes dense graphs and weight files below one bundle folder, one after the other.

    `formats` are those of matrices; everything else is kept in `dtype`.
    """

    def __init__(self, checkpoint: Checkpoint, dtype: str, formats: MatrixFormats, bundle: Path) -> None:
        self.checkpoint = checkpoint
        self.dtype = dtype
        self.formats = formats
        self.folder = bundle / "onnx"
        self.files: dict[str, FileSpec] = {}  # weight files by their path in the bundle
        self._traced: dict[tuple[Alike, Forms], TracedGraph] = {}
        self._once: dict[str, tuple[StoredTensor, ...]] = {}  # of several graphs, by name

    def export(self, progress: Callable[[str], None]) -> Iterator[GraphSpec]:
        """Write every graph; `progress` is called with the name of each as it begins."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for dense in all_dense_graphs(self.checkpoint.plan):
            progress(dense.name)
            yield self._export_graph(dense)
        opset = max(traced.model.opset_imports[""] for traced in self._traced.values())
        small = SmallGraphExporter(self.checkpoint, self.dtype, self.folder, opset)
        yield from small.export(progress)
        self.files |= small.files

    def _export_graph(self, dense: DenseGraph) -> GraphSpec:
        alike = dense.alike(self.checkpoint.plan), self._forms(dense)
        if alike not in self._traced:
            self._traced[alike] = self._trace(dense)
        traced = self._traced[alike]
        files: set[str] = set()
        for name, stored in self._store(dense, traced).items():
            for value, tensor in zip(traced.stands_for[name], stored, strict=True):
                tensor.bind(value, self.folder)
                files.add(f"onnx/{tensor.file}")
        traced.model.graph.name = dense.name
        (self.folder / f"{dense.name}.onnx").write_bytes(ir.to_proto(traced.model).SerializeToString())
        return dense_spec(dense, self.checkpoint.plan, self.dtype, tuple(sorted(files)))

    def _trace(self, dense: DenseGraph) -> TracedGraph:
        model, parameters = trace_graph(dense, self.checkpoint.plan, self.dtype)
        stands_for: dict[str, tuple[ir.Value, ...]] = {}
        for value in parameters:
            assert value.name is not None
            stands_for[value.name] = self._format(dense, value).place(model, value)
        _add_functions(model)
        return TracedGraph(model, tuple(parameters), stands_for)

    def _forms(self, dense: DenseGraph) -> Forms:
        """What makes a graph another one: the formats of its layers' matrices that are not most layers'."""
        named, layers = self.formats.named, (dense.before, dense.after)
        mine = tuple(f"model.layers.{layer}." for layer in layers)
        if dense.kind == "draft" or not named:
            return ()
        return tuple(
            (tuple(map(name.startswith, mine)), _LAYER.sub("", name), form.name)
            for name, form in sorted(named.items())
            if name.startswith(mine)
        )

    def _format(self, dense: DenseGraph, value: ir.Value) -> WeightFormat:
        assert value.name is not None
        assert value.shape is not None
        source = parameter_source(dense, value.name, self.checkpoint.plan)
        matrix = tensor_format(source, tuple(value.shape.numpy()), self.formats)
        return matrix or FLOATS["float32" if source.endswith(FLOAT32) else self.dtype]

    def _store(self, dense: DenseGraph, traced: TracedGraph) -> dict[str, tuple[StoredTensor, ...]]:
        """Stream the graph's weights into its file. What several graphs read is stored once, in its own file."""
        stored: dict[str, tuple[StoredTensor, ...]] = {}
        with WeightFile(self.folder, dense.weight_file) as file:
            for value in traced.parameters:
                assert value.name is not None
                assert value.shape is not None
                shape = tuple(value.shape.numpy())
                source = parameter_source(dense, value.name, self.checkpoint.plan)
                if value.name.endswith(FREQUENCIES):
                    stored[value.name] = (file.add(self._inverse_frequencies(value.name)),)
                elif source == EMBEDDING or (source == HEAD and self.checkpoint.config.draft):
                    stored[value.name] = self._store_once(source, shape, self._format(dense, value))
                else:
                    stored[value.name] = self._format(dense, value).store(
                        self.checkpoint, source, shape, file
                    )
        self.files[f"onnx/{dense.weight_file}"] = file.spec()
        return stored

    def _store_once(
        self, source: str, shape: tuple[int, ...], form: WeightFormat
    ) -> tuple[StoredTensor, ...]:
        if source not in self._once:
            name = "weights/embedding.bin" if source == EMBEDDING else "weights/head.bin"
            with WeightFile(self.folder, name) as file:
                self._once[source] = form.store(self.checkpoint, source, shape, file)
            self.files[f"onnx/{name}"] = file.spec()
        return self._once[source]

    def _inverse_frequencies(self, parameter: str) -> Tensor:
        """Of the table whose parameter has this name: rotations.0.inv_freq, rotations.1.inv_freq, …"""
        plan, table = self.checkpoint.plan, int(parameter.split(".")[1])
        angles = plan.config.rotations[table].inverse_frequencies(plan.rotary_sizes[table])
        return torch.from_numpy(np.ascontiguousarray(angles))


def _add_functions(model: ir.Model) -> None:
    """Give the graph the bodies of the functions that it names, for the operators that it has."""
    named = {node.op_type for node in model.graph if node.domain == DOMAIN}
    for proto in function_protos(function for function in DENSE_FUNCTIONS if function.name in named):
        function = ir.serde.deserialize_function(proto)
        function.opset_imports[""] = model.opset_imports[""]
        model.functions[function.identifier()] = function


def trace_graph(dense: DenseGraph, plan: Plan, dtype: str) -> tuple[ir.Model, list[ir.Value]]:
    """Trace one kind of dense graph on the meta device: no weight is in memory."""
    inputs, outputs = dense_interface(dense, plan, dtype)
    with torch.device("meta"):
        module = dense.make(plan).to(FLOATS[dtype].dtype)
        for name, parameter in module.named_parameters():
            if parameter_source(dense, name, plan).endswith(FLOAT32) or name.endswith(FREQUENCIES):
                parameter.data = parameter.data.float()  # angles lose all meaning in float16
    model, parameters = trace(module, inputs, [spec.name for spec in outputs], dense.name)
    lay_out_experts(model)
    return model, parameters
