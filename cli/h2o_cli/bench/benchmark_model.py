"""The measured model: a bundle, and files of the same weights for the peers."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from h2o_cli.bench.shapes import SHAPES
from h2o_cli.bundle_argument import as_bundle
from h2o_cli.extras import needs_export
from h2o_runtime.bundles.manifest import Manifest
from h2o_runtime.errors import BackendError, BundleError, OutputError
from h2o_runtime.files.outputs import user_cache

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BenchmarkModel:
    """checkpoint is a folder or a GGUF file; None if the bundle's is not on this machine: peers are then absent."""

    name: str
    bundle: Path
    checkpoint: Path | None
    work: Path
    manifest: Manifest

    @classmethod
    def open(cls, name: str, work: Path, dtype: str, checkpoint: Path | None = None) -> BenchmarkModel:
        """`name` is what `as_bundle` takes, or a key of SHAPES; for a key, a random checkpoint and its bundle are
        created.
        """
        if name in SHAPES and not Path(name).is_dir():
            folder = work / f"{name}-{dtype}"
            source = _once(folder / "checkpoint", lambda empty: _write_checkpoint(name, empty))
            bundle = _once(folder / "bundle", lambda empty: _export(source, empty, dtype))
            return cls(name, bundle, source, folder, Manifest.read(bundle))
        bundle = as_bundle(name, f"neither a bundle's folder nor a built-in shape ({', '.join(SHAPES)})")
        manifest = Manifest.read(bundle)
        known = checkpoint or Path(manifest.checkpoint.source)
        found = known if is_gguf(known) or (known / "config.json").is_file() else None
        if manifest.checkpoint.adapter is not None and checkpoint is None:
            found = None  # peers would have other weights
        if checkpoint and not found:
            raise BundleError(
                f"{checkpoint}: no GGUF file and no folder with a config.json, so this is not a checkpoint"
            )
        identity = f"{manifest.checkpoint.sha256[:12]}-{manifest.model.dtype}"
        return cls(bundle.name, bundle, found, work / identity, manifest)

    def converted(self, name: str, convert: Callable[[Path], None]) -> Path:
        """A peer's folder of the same weights; if missing, `convert` writes it into an empty folder."""
        return _once(self.work / name, convert)


def is_gguf(path: Path) -> bool:
    return path.suffix == ".gguf" and path.is_file()


def default_work_dir() -> Path:
    """Where generated files are kept between runs. Raises OutputError for a user without a home."""
    return user_cache() / "h2o-bench"


def _once(folder: Path, make: Callable[[Path], None]) -> Path:
    """`folder`, which `make` fills if it does not exist; a failed attempt leaves nothing behind."""
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as staging:
            log.info("writing %s", folder)
            inner = Path(staging) / folder.name
            inner.mkdir()
            make(inner)
            os.replace(inner, folder)
    except OSError as error:
        raise OutputError(f"{folder}: cannot be written: {error.strerror or error}") from error
    return folder


def _write_checkpoint(shape: str, folder: Path) -> None:
    with _export_extra():
        from h2o_cli.bench.random_checkpoint import write
    write(SHAPES[shape], folder)


def _export(checkpoint: Path, folder: Path, dtype: str) -> None:
    with _export_extra():
        from h2o_export.checkpoints import open_checkpoint
        from h2o_export.exporter import ExportOptions, write_bundle
    options = ExportOptions(str(checkpoint), folder, dtype)  # type: ignore[arg-type]
    write_bundle(open_checkpoint(str(checkpoint)), options, folder, lambda step: None)


@contextmanager
def _export_extra() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        what = "a built-in shape must be written and exported first, which"
        raise BackendError(needs_export(what, error)) from None
