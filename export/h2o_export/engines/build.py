"""The whole build: the selected engines and their manifest, in a folder that appears when it is complete."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from h2o_export.engines.fit import fitting_sm
from h2o_export.engines.network import PlanBuilder
from h2o_export.engines.plugin_graph import plugin_graph
from h2o_export.engines.selection import EngineSelection, check_folder
from h2o_export.engines.weights_once import may_hold_copies, saves_copies, stored_bytes
from h2o_export.staging import staged_folder
from h2o_runtime.bundles.manifest import FileSpec, file_sha256
from h2o_runtime.engines import EngineManifest, EngineSpec, Machine, bundle_sha256
from h2o_runtime.engines.machine import import_tensorrt
from h2o_runtime.files.inputs import confined

log = logging.getLogger(__name__)
TIMING_CACHE = "timing.cache"
Progress = Callable[[str], None]
Result = TypeVar("Result")


def build(selection: EngineSelection, machine: Machine, progress: Progress) -> EngineManifest:
    """Build the selected engines on `machine` into its folder; `progress` gets the name of each engine as its
    build starts.

    The folder does not change until the last file is written. Raises BackendError, ConfigError or
    OutputError.
    """
    trt = import_tensorrt(machine.target)
    sm = fitting_sm(selection, machine, trt)
    check_folder(selection)
    known_timings = _timing_cache(selection.folder) if machine.target.plugins else None
    own_sm = () if machine.target.plugins else sm
    builder = PlanBuilder(trt, own_sm, known_timings)
    if machine.plugins is not None:
        builder.load_plugins(machine.plugins)
    with staged_folder(selection.folder, selection.options.force) as folder:
        built = []
        for engine in selection.engines:
            progress(engine.name)
            write = partial(_write_plan, builder, selection, engine, folder)
            built.append(_interruptible(builder, write))
        files = {path.name: _file_spec(path) for path in sorted(folder.iterdir())}
        if builder.timing_cache is not None:
            (folder / TIMING_CACHE).write_bytes(builder.timing_cache)
        manifest = _manifest(selection, machine, sm, tuple(built), files)
        manifest.write(folder)
    return manifest


def _write_plan(
    builder: PlanBuilder, selection: EngineSelection, engine: EngineSpec, folder: Path
) -> EngineSpec:
    """Build one engine and write its plan; returns its manifest entry."""
    graph = selection.bundle.graph(engine.name)
    source = selection.bundle.path(graph)
    recorded = graph.kind != "attention"
    if not recorded:
        # The graph with plugins stays beside the plan, for trtexec and Polygraphy.
        model = plugin_graph(source)
        source = folder / f"{engine.name}.onnx"
        source.write_bytes(model.SerializeToString())
    plan = memoryview(builder.build(source, engine.profiles, recorded))
    if recorded and selection.options.profiles is None and len(engine.profiles) > 1:
        stored = stored_bytes(source)
        if may_hold_copies(plan.nbytes, stored):
            single = memoryview(builder.build(source, engine.profiles[-1:], recorded))
            if saves_copies(single.nbytes, plan.nbytes, stored):
                log.info("%s: two profiles hold weights twice, so it gets one for any rows", engine.name)
                plan, engine = single, engine.model_copy(update={"profiles": engine.profiles[-1:]})
    (folder / engine.file).write_bytes(plan)
    return engine


def _interruptible(builder: PlanBuilder, work: Callable[[], Result]) -> Result:
    """Run `work` in a thread, so that Ctrl-C reaches the main thread while TensorRT is busy and stops the
    build at its next step.
    """
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        try:
            return future.result()
        except BaseException:
            builder.stop.set()
            raise


def _timing_cache(folder: Path) -> bytes:
    """Timings of an earlier build of this bundle; empty if there was none."""
    try:
        return confined(folder, TIMING_CACHE).read_bytes()
    except OSError:
        return b""


def _file_spec(path: Path) -> FileSpec:
    return FileSpec(bytes=path.stat().st_size, sha256=file_sha256(path))


def _manifest(
    selection: EngineSelection,
    machine: Machine,
    sm: tuple[int, ...],
    engines: tuple[EngineSpec, ...],
    files: dict[str, FileSpec],
) -> EngineManifest:
    bundle = selection.bundle.manifest
    return EngineManifest(
        target=machine.target.name,
        tensorrt=machine.tensorrt,
        sm=sm,
        plugins=None if machine.plugins is None else file_sha256(machine.plugins),
        dtype=bundle.model.dtype,
        max_context=selection.limits.context,
        batch_size=selection.limits.batch,
        prefill=selection.prefill,
        checkpoint=bundle.checkpoint.sha256,
        bundle=bundle_sha256(bundle),
        engines=engines,
        files=files,
    )
