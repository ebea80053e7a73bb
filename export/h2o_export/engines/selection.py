"""Which engines to build, from the bundle's manifest and the options alone: this needs no TensorRT."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from h2o_export.engines.profiles import ProfileLimits, make_profiles
from h2o_export.staging import check_output
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.bundles.manifest import GraphSpec
from h2o_runtime.engines import EngineSpec, Target
from h2o_runtime.engines.machine import find_target
from h2o_runtime.errors import ConfigError, OutputError
from h2o_runtime.limits import MAX_CONTEXT
from h2o_runtime.policies.prefill import PrefillPolicy


@dataclass(frozen=True)
class BuildOptions:
    """What the user asks for. Without `sm` engines are for the GPU that is there; `batch_size` is the bundle's.

    profiles  of a dense engine: 2, for one token and a batch; 1 for both; None: 2 unless that holds weights twice
    """

    target: str
    sm: tuple[int, ...] = ()
    max_context: int = 16384
    batch_size: int | None = None
    profiles: int | None = None
    plugins: Path | None = None
    force: bool = False


@dataclass(frozen=True)
class EngineSelection:
    """What one build makes: which graphs become engines, with which profiles."""

    bundle: Bundle
    target: Target
    options: BuildOptions
    prefill: PrefillPolicy[Any]
    limits: ProfileLimits
    engines: tuple[EngineSpec, ...]

    @property
    def folder(self) -> Path:
        """The folder for the engines."""
        return self.bundle.folder / "engines" / self.target.name

    def to_json(self) -> dict[str, Any]:
        return {
            "bundle": str(self.bundle.folder),
            "target": self.target.name,
            "sm": list(self.options.sm),
            "folder": str(self.folder),
            "dtype": self.bundle.manifest.model.dtype,
            "max_context": self.limits.context,
            "batch_size": self.limits.batch,
            "engines": [engine.model_dump() for engine in self.engines],
        }


def select_engines(bundle: Bundle, options: BuildOptions) -> EngineSelection:
    """Raises ConfigError for options that contradict each other or the bundle."""
    target = find_target(options.target)
    if not 1 <= options.max_context <= MAX_CONTEXT:
        raise ConfigError(
            f"max_context must be from 1 to {MAX_CONTEXT:,} tokens, but is {options.max_context}",
            field="max_context",
        )
    if options.plugins is not None and not target.plugins:
        raise ConfigError(
            f"plugins are only for the target tensorrt: with {target.title} attention runs outside the engines; "
            "leave out `plugins`",
            field="plugins",
        )
    if target.plugins and len(set(options.sm)) > 1:
        raise ConfigError(
            f"sm is {' and '.join(map(str, options.sm))}, but {target.title} builds only for the GPU of this "
            "machine: give at most one",
            field="sm",
        )
    prefill = bundle.manifest.prefill
    if options.batch_size is not None:
        prefill = replace(prefill, batch_size=options.batch_size)
    limits = ProfileLimits.of(bundle.manifest.model, prefill, options.max_context)
    attends = target.plugins and not bundle.manifest.prefill.only_on_cpu
    built = {"dense", "latent", "layer"} | ({"attention"} if attends else set())
    graphs = [graph for graph in bundle.manifest.graphs if graph.kind in built]
    engines = tuple(_engine(graph, limits, options.profiles) for graph in graphs)
    return EngineSelection(bundle, target, options, prefill, limits, engines)


def check_folder(selection: EngineSelection) -> None:
    """Refuse to replace other files before hours of work. Raises OutputError."""
    if not selection.options.force and (selection.folder / "manifest.json").exists():
        raise OutputError(f"{selection.folder}: engines are there already; add `force` to build them again")
    check_output(selection.folder, selection.options.force)


def _engine(graph: GraphSpec, limits: ProfileLimits, profiles: int | None) -> EngineSpec:
    made = make_profiles(graph, limits)
    if profiles == 1 and graph.kind != "attention":
        made = made[-1:]  # the smallest batch profile starts at one row
    return EngineSpec(name=graph.name, file=f"{graph.name}.plan", profiles=made)
