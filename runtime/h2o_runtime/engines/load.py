"""Opens a bundle's engines after checking every reason why they might not fit.

TensorRT reports a misfit late, and in terms of magic tags and safety versions. Here each misfit is one
sentence that says what differs and what to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.bundles.manifest import file_sha256
from h2o_runtime.engines.machine import Machine
from h2o_runtime.engines.manifest import EngineManifest, bundle_sha256
from h2o_runtime.errors import BackendError, BundleError, ConfigError
from h2o_runtime.files.inputs import confined


@dataclass(frozen=True)
class EngineSet:
    """Engines that fit this machine and this bundle, complete and unchanged."""

    folder: Path
    manifest: EngineManifest

    def plan(self, name: str) -> Path:
        """The plan file of the engine built from graph `name`."""
        for engine in self.manifest.engines:
            if engine.name == name:
                return confined(self.folder, engine.file)
        raise BundleError(
            f"{self.folder}: no engine was built from graph '{name}'; build again with h2o-build"
        )


def open_engines(bundle: Bundle, machine: Machine, context: int | None = None) -> EngineSet:
    """The engines of `bundle` for `machine`; reads every plan file once, for its hash.

    Raises BundleError if engines are missing, broken or built from another state of the bundle; BackendError
    if they do not fit the machine; ConfigError if they are too small for `context` tokens.
    """
    folder = bundle.folder / "engines" / machine.target.name
    manifest = EngineManifest.read(folder)
    again = f"build again: h2o-build {bundle.folder} --target {machine.target.name} --force"
    _check_bundle(manifest, bundle, folder, again)
    _check_machine(manifest, machine, folder, again)
    if context is not None and context > manifest.max_context:
        raise ConfigError(
            f"context is {context}, and the engines were built for at most {manifest.max_context}; lower it, or "
            f"{again} --ctx-size {context}",
            field="context",
        )
    _check_files(manifest, folder, again)
    return EngineSet(folder, manifest)


def _check_bundle(manifest: EngineManifest, bundle: Bundle, folder: Path, again: str) -> None:
    if manifest.target != folder.name:
        raise BundleError(f"{folder}: holds engines of target {manifest.target}; {again}")
    if manifest.checkpoint != bundle.manifest.checkpoint.sha256:
        raise BundleError(f"{folder}: built from another checkpoint than the bundle holds now; {again}")
    if manifest.bundle != bundle_sha256(bundle.manifest):
        raise BundleError(f"{folder}: the bundle was exported again after its engines were built; {again}")


def _check_machine(manifest: EngineManifest, machine: Machine, folder: Path, again: str) -> None:
    title = machine.target.title
    if manifest.tensorrt != machine.tensorrt:
        raise BackendError(
            f"{folder}: built with {title} {manifest.tensorrt}, but this machine has {title} {machine.tensorrt}, "
            f"and engines run only with the version that built them; {again}"
        )
    built_for = " and ".join(f"SM{sm}" for sm in manifest.sm)
    if machine.sm is None:
        raise BackendError(
            f"{folder}: built for a GPU of {built_for}, and no NVIDIA GPU was found here; use the onnxruntime "
            "backend on this machine"
        )
    if machine.sm not in manifest.sm:
        raise BackendError(
            f"{folder}: built for a GPU of {built_for}, the one here is SM{machine.sm}; {again}"
        )
    if manifest.plugins is not None:
        if machine.plugins is None:
            raise BackendError(f"{folder}: needs the plugin library libh2o_trt_plugins.so, none was given")
        if file_sha256(machine.plugins) != manifest.plugins:
            raise BackendError(
                f"{folder}: its engines were built with another plugin library than {machine.plugins}; {again}"
            )


def _check_files(manifest: EngineManifest, folder: Path, again: str) -> None:
    for name, spec in manifest.files.items():
        path = confined(folder, name)
        try:
            size = path.stat().st_size
        except OSError:
            raise BundleError(f"{path}: missing; {again}") from None
        if size != spec.bytes:
            raise BundleError(
                f"{path}: has {size:,} bytes, the manifest says {spec.bytes:,}: truncated or replaced; {again}"
            )
        if file_sha256(path) != spec.sha256:
            raise BundleError(f"{path}: its content is not what h2o-build wrote; {again}")
