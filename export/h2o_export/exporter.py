"""The whole export: checkpoint → bundle folder, written aside and renamed into place when it is complete."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import onnx

from h2o_export.attention import AttentionGraphBuilder
from h2o_export.checkpoint import TOKENIZER_FILES, Checkpoint
from h2o_export.config import ModelConfig
from h2o_export.dense import DenseExporter
from h2o_export.operators import DOMAIN, VERSION
from h2o_export.trace import OPSET
from h2o_runtime.config import PrefillConfig
from h2o_runtime.errors import OutputError
from h2o_runtime.manifest import CheckpointSpec, FileSpec, GraphSpec, Manifest, ModelSpec, file_sha256

LIBRARIES = ("h2o-edge", "torch", "transformers", "onnx", "onnxscript", "onnxruntime", "safetensors")
Progress = Callable[[str], None]


@dataclass(frozen=True)
class ExportOptions:
    """What to export and where to. `force` replaces an existing output folder, once the new one is complete."""

    checkpoint: str
    output: Path
    dtype: Literal["float32", "float16"] = "float32"
    prefill: PrefillConfig = field(default_factory=PrefillConfig)
    force: bool = False


def model_spec(config: ModelConfig, dtype: Literal["float32", "float16"]) -> ModelSpec:
    """The part of the model's configuration that the runtime needs."""
    return ModelSpec(
        family=config.family,
        hidden_size=config.hidden_size,
        layers=config.layers,
        query_heads=config.query_heads,
        kv_heads=config.kv_heads,
        head_size=config.head_size,
        intermediate_size=config.intermediate_size,
        vocab_size=config.vocab_size,
        max_position_embeddings=config.max_position_embeddings,
        parameters=config.parameters,
        tied=config.tied,
        scale=config.scale,
        dtype=dtype,
    )


def write_bundle(
    checkpoint: Checkpoint, options: ExportOptions, folder: Path, progress: Progress
) -> Manifest:
    """Write every file of the bundle into `folder`, which exists and is empty. Returns its manifest."""
    files: dict[str, FileSpec] = {}
    dense = DenseExporter(checkpoint, options.dtype, folder)
    graphs: list[GraphSpec] = list(dense.export(progress))
    files.update(dense.files)
    progress("attention graphs")
    for graph in AttentionGraphBuilder(checkpoint.config, options.prefill, options.dtype).all():
        onnx.checker.check_model(graph.model, full_check=True)
        (folder / graph.spec.file).write_bytes(graph.model.SerializeToString())
        graphs.append(graph.spec)
    for spec in graphs:
        if spec.kind == "dense":
            onnx.checker.check_model(str(folder / spec.file), full_check=True)
    progress("tokenizer")
    for name in TOKENIZER_FILES:
        if (checkpoint.folder / name).is_file():
            shutil.copyfile(checkpoint.folder / name, folder / name)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        files.setdefault(name, FileSpec(bytes=path.stat().st_size, sha256=file_sha256(path)))
    progress("checkpoint hash")
    manifest = Manifest(
        created_by=_versions(),
        opset={"": OPSET, DOMAIN: VERSION},
        checkpoint=CheckpointSpec(source=_source(checkpoint), sha256=checkpoint.sha256()),
        model=model_spec(checkpoint.config, options.dtype),
        prefill=options.prefill,
        graphs=tuple(graphs),
        files=files,
    )
    manifest.write(folder)
    return manifest


@contextlib.contextmanager
def staged_folder(output: Path, force: bool) -> Iterator[Path]:
    """A temporary folder beside `output` that becomes it when the block ends well, and vanishes otherwise.

    Raises OutputError when `output` exists (unless `force`) or cannot be written.
    """
    check_output(output, force)
    target = Path(os.path.realpath(output))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise OutputError(f"{output.parent}: cannot write there: {error.strerror}") from error
    try:
        staging.chmod(0o777 & ~_umask())
        yield staging
        with _undisturbed():
            _put_in_place(staging, target)
    except OSError as error:
        raise OutputError(f"{output}: writing failed: {error.strerror or error}") from error
    finally:
        with _undisturbed():
            shutil.rmtree(staging, ignore_errors=True)


def check_output(output: Path, force: bool) -> None:
    """Refuse what must not or cannot be replaced before any work is done."""
    try:
        if not output.exists():
            return
        if not output.is_dir():
            raise OutputError(f"{output}: exists and is not a folder")
        if Path.cwd().is_relative_to(output.resolve()):
            raise OutputError(f"{output}: is where this command runs; name a new folder in it")
        if output.is_mount():
            raise OutputError(f"{output}: is a mount point and cannot be replaced; name a new folder in it")
        if any(output.iterdir()):
            if not force:
                raise OutputError(f"{output}: exists already; choose another folder or add --force")
            if not (output / "manifest.json").is_file():
                raise OutputError(f"{output}: exists and is not a bundle, so --force does not replace it")
    except OSError as error:
        raise OutputError(f"{output}: cannot write there: {error.strerror}") from error


def _put_in_place(staging: Path, target: Path) -> None:
    """Rename `staging` to `target`. What is there goes away, unless something fails: then it stays."""
    if not target.exists():
        os.replace(staging, target)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", dir=target.parent))
    old = aside / target.name
    try:
        os.replace(target, old)
        os.replace(staging, target)
    except OSError:
        if old.exists():
            os.replace(old, target)
        aside.rmdir()
        raise
    shutil.rmtree(aside, ignore_errors=True)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Ctrl-C and SIGTERM do nothing in here: a short moment in which they would leave half of something."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _source(checkpoint: Checkpoint) -> str:
    """How to find the checkpoint again: a hub name as it is, a folder as an absolute path."""
    return str(Path(checkpoint.source).resolve()) if Path(checkpoint.source).is_dir() else checkpoint.source


def _versions() -> dict[str, str]:
    versions = {}
    for name in LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions
