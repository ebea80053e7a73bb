"""The whole export: checkpoint → bundle folder."""

from __future__ import annotations

import contextlib
import importlib.metadata
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import onnx

from h2o_export.architecture.config import ModelConfig
from h2o_export.calibration import CompensatedCheckpoint, calibrate
from h2o_export.checkpoints import Checkpoint
from h2o_export.dense.experts import UNGATED
from h2o_export.dense.graphs import (
    DenseExporter,
    all_dense_graphs,
)
from h2o_export.dense.weight_spec import matrices_of_layers, parameter_count, weight_spec
from h2o_export.formats import BLOCK_SIZE, STORED, DType, MatrixFormats, choose_formats, stored_format
from h2o_export.formats.blocks import OPSET as BLOCKS_OPSET
from h2o_export.operators import DOMAIN, VERSION
from h2o_export.operators.opset import OPSET
from h2o_export.policies import model_graphs
from h2o_export.validation.soundness import check_checkpoint
from h2o_runtime.bundles.manifest import CheckpointSpec, FileSpec, GraphSpec, Manifest, file_sha256
from h2o_runtime.errors import ConfigError
from h2o_runtime.model_spec import ExpertsSpec, ModelSpec
from h2o_runtime.policies.prefill import PrefillPolicy, Query

__all__ = ["ExportOptions", "model_spec", "write_bundle"]

LIBRARIES = ("h2o-edge", "torch", "transformers", "onnx", "onnxscript", "onnxruntime", "safetensors", "gguf")
CALIBRATED = ("int8", "int4")  # formats of `weights`; others keep what there is
Progress = Callable[[str], None]


@dataclass(frozen=True)
class ExportOptions:
    """What to export and where to. `force` replaces an existing output folder, once the new one is complete.

    weights       a key of FORMATS, for the matrices of layers, or STORED: each as the checkpoint has it
    block_size    weights that share a scale, where the format has blocks
    head_weights  another key for the head; None: see `choose_formats`
    calibrate     a text whose activations integer weights are made for; None: Python's manual
    calibrated    False: weights are rounded to the nearest, whatever they multiply
    """

    checkpoint: str
    output: Path
    dtype: Literal["float32", "float16"] = "float32"
    prefill: PrefillPolicy[Any] = field(default_factory=Query)
    force: bool = False
    weights: str = STORED
    block_size: int = BLOCK_SIZE
    head_weights: str | None = None
    calibrate: Path | None = None
    calibrated: bool = True

    def __post_init__(self) -> None:
        if self.calibrate is not None and (self.weights not in CALIBRATED or not self.calibrated):
            raise ConfigError(
                "calibrate needs integer weights that are calibrated: leave it out, or take int8 or int4",
                field="calibrate",
            )
        if self.block_size != BLOCK_SIZE and {self.weights, self.head_weights or "float"} == {"float"}:
            raise ConfigError(
                "block_size needs integer weights: leave it out, or take int8 or int4",
                field="block_size",
            )

    def formats(self, checkpoint: Checkpoint) -> MatrixFormats:
        """`int4` keeps the offsets of the checkpoint's own 4-bit blocks. Raises ConfigError."""
        plan, common = checkpoint.plan, self.weights
        own: dict[str, str] = {}
        if common in (STORED, "int4"):
            kinds = matrices_of_layers(plan)
            own = {name: stored_format(checkpoint.integers(name), self.block_size) for name in kinds}
            if common == "int4":
                own = {name: form if form == "int4+offset" else "int4" for name, form in own.items()}
            sizes: Counter[str] = Counter()
            for name, form in own.items():
                sizes[form] += math.prod(kinds[name])
            common = sizes.most_common(1)[0][0]
        named = {name: form for name, form in own.items() if form != common}
        return choose_formats(self.dtype, common, self.block_size, self.head_weights, plan.config.tied, named)


def model_spec(checkpoint: Checkpoint, dtype: DType, formats: MatrixFormats) -> ModelSpec:
    """The part of the model's configuration that the runtime needs."""
    plan, config = checkpoint.plan, checkpoint.config
    specs = tuple(layer.spec for layer in plan.layers)
    first = specs[0]
    fields: dict[str, Any] = {}
    for layer in plan.layers:
        fields |= layer.kind.manifest_fields(config)
    model = ModelSpec(
        family=config.family,
        hidden_size=config.hidden_size,
        layers=config.layers,
        query_heads=first.query_heads,
        kv_heads=first.kv_heads,
        head_size=first.head_size,
        intermediate_size=max(layer.config.intermediate_size for layer in plan.layers),
        vocab_size=config.vocab_size,
        max_position_embeddings=config.max_position_embeddings,
        parameters=parameter_count(plan),
        tied=config.tied,
        scale=first.scale,
        dtype=dtype,
        weights=weight_spec(checkpoint, dtype, formats),
        experts=_experts_spec(config),
        layer_embedding=config.layer_embedding.size if config.layer_embedding else 0,
        draft=plan.draft.layers[0].spec if plan.draft else None,
        rope_ends=any(rope.ends for rope in config.ropes),
        **fields,
    )
    mlps = tuple(_mlp_weights(config, layer) for layer in range(config.layers))
    if model.each_layer != specs:
        model = model.model_copy(update={"layer_specs": specs})
    return model if model.each_mlp == mlps else model.model_copy(update={"mlp_weights": mlps})


def _mlp_weights(config: ModelConfig, layer: int) -> int:
    """Of one layer: see `ModelSpec.each_mlp`."""
    if not config.has_mlp(layer):
        return 0
    matrices, experts, rows = _matrices(config), config.experts, 0
    dense = matrices * config.at(layer).intermediate_size
    if experts is not None and config.routed(layer):
        rows = experts.count + matrices * (experts.chosen * experts.size + experts.shared_size)
        dense = dense if experts.beside_mlp else 0
    return config.hidden_size * (rows + dense)


def _matrices(config: ModelConfig) -> Literal[2, 3]:
    """Of an MLP or an expert."""
    return 2 if config.activation == UNGATED else 3


def count_stages(checkpoint: Checkpoint, options: ExportOptions, validated: bool) -> int:
    """How often `progress` is called while a bundle is written, and while it is `validated`."""
    plan = checkpoint.plan
    small = sum(bool(kind.small_graphs(plan.config, options.dtype)) for kind in plan.kinds)
    written = options.calibrated + len(all_dense_graphs(plan)) + small + 3
    return written + (len(plan.layers) + 2 + _rounds(options.formats(checkpoint)) if validated else 0)


def _rounds(formats: MatrixFormats) -> bool:
    return formats.block_size is not None


def _experts_spec(config: ModelConfig) -> ExpertsSpec | None:
    experts = config.experts
    if experts is None:
        return None
    return ExpertsSpec(
        layers=len(experts.layers),
        count=experts.count,
        chosen=experts.chosen,
        size=experts.size,
        shared_size=config.intermediate_size if experts.beside_mlp else experts.shared_size,
        matrices=_matrices(config),
    )


def write_bundle(
    checkpoint: Checkpoint, options: ExportOptions, folder: Path, progress: Progress
) -> Manifest:
    """Write every file of the bundle into the empty `folder`. Returns its manifest.

    Raises CheckpointError before anything is written if the checkpoint contradicts itself.
    """
    check_checkpoint(checkpoint)
    original = checkpoint
    files: dict[str, FileSpec] = {}
    formats = options.formats(checkpoint)
    if options.calibrated:
        progress("calibration")
        if options.weights in CALIBRATED:
            checkpoint = calibrate(checkpoint, formats, options.calibrate, folder)
    dense = DenseExporter(checkpoint, options.dtype, formats, folder)
    graphs: list[GraphSpec] = list(dense.export(progress))
    files.update(dense.files)
    progress("attention graphs")
    model = _with_learned(
        _with_rounding(model_spec(original, options.dtype, formats), checkpoint), checkpoint
    )
    opset = BLOCKS_OPSET if formats.block_size is not None else OPSET
    for graph in model_graphs(options.prefill, model):
        _set_opset(graph.model, opset)
        onnx.checker.check_model(graph.model, full_check=True)
        (folder / graph.spec.file).write_bytes(graph.model.SerializeToString())
        graphs.append(graph.spec)
    for spec in graphs:
        if spec.kind != "attention":
            onnx.checker.check_model(str(folder / spec.file), full_check=True)
    progress("tokenizer")
    checkpoint.write_tokenizer(folder)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        files.setdefault(name, FileSpec(bytes=path.stat().st_size, sha256=file_sha256(path)))
    progress("checkpoint hash")
    manifest = Manifest(
        created_by=_versions(),
        opset={"": opset, DOMAIN: VERSION},
        checkpoint=_checkpoint_spec(checkpoint),
        model=model,
        prefill=options.prefill,
        graphs=tuple(graphs),
        files=files,
        embedding=checkpoint.embedding,
    )
    manifest.write(folder)
    return manifest


def _set_opset(model: onnx.ModelProto, version: int) -> None:
    """All graphs of a bundle have the same opset; attention graphs mean the same under each of them."""
    for holder in (model, *model.functions):
        for opset in holder.opset_import:
            if opset.domain == "":
                opset.version = version


def _with_rounding(model: ModelSpec, checkpoint: Checkpoint) -> ModelSpec:
    """`model` says whether its weights were rounded to nearest, or taken from the checkpoint."""
    if model.weights is None or not isinstance(checkpoint, CompensatedCheckpoint):
        return model
    return model.model_copy(update={"weights": model.weights.model_copy(update={"compensated": True})})


def _with_learned(model: ModelSpec, checkpoint: Checkpoint) -> ModelSpec:
    """`model` with the numbers of its layers that no graph holds."""
    learned = [layer.kind.learned(checkpoint, number) for number, layer in enumerate(checkpoint.plan.layers)]
    if not any(learned):
        return model
    specs = (spec.model_copy(update=fields) for spec, fields in zip(model.each_layer, learned, strict=True))
    return model.model_copy(update={"layer_specs": tuple(specs)})


def _checkpoint_spec(checkpoint: Checkpoint) -> CheckpointSpec:
    """How to find the checkpoint again: a hub name unchanged, paths as absolute paths."""
    source, adapter = Path(checkpoint.source), checkpoint.adapter_folder
    return CheckpointSpec(
        source=str(source.resolve()) if source.exists() else checkpoint.source,
        sha256=checkpoint.sha256(),
        adapter=None if adapter is None else str(adapter.resolve()),
    )


def _versions() -> dict[str, str]:
    versions = {}
    for name in LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions
