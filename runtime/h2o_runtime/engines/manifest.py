"""`engines/<target>/manifest.json`: what was built, for which machine, from which bundle."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from h2o_runtime.bundles.manifest import MANIFEST, FileSpec, Manifest, Prefill, invalid, read_json
from h2o_runtime.errors import BundleError
from h2o_runtime.layer_spec import Strict
from h2o_runtime.names import TargetName

FORMAT = 2


class TensorRange(Strict):
    """The allowed range of one input: its shapes, or its values if TensorRT derives other shapes from
    them.
    """

    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]


class Profile(Strict):
    """One optimization profile: an engine is tuned for `opt` and accepts sizes from `min` to `max`."""

    name: Literal["prefill", "decode"]
    shapes: dict[str, TensorRange]
    values: dict[str, TensorRange] = Field(default_factory=dict)


class EngineSpec(Strict):
    name: str  # of the graph that it was built from
    file: str  # relative to this manifest
    profiles: tuple[Profile, ...]


class EngineManifest(Strict):
    """`sm` are compute capabilities in NVIDIA's form without a dot, as in SM87; `plugins` is the library's
    SHA-256.
    """

    format: int = FORMAT
    target: TargetName
    tensorrt: str
    sm: tuple[int, ...]
    plugins: str | None
    dtype: Literal["float32", "float16"]
    max_context: int = Field(gt=0)
    batch_size: int = Field(gt=0)
    prefill: Prefill  # what the attention engines were built for, if there are any
    checkpoint: str  # SHA-256 of the checkpoint, from the bundle's manifest
    bundle: str  # SHA-256 of the bundle's graphs and weights
    engines: tuple[EngineSpec, ...]
    files: dict[str, FileSpec]

    def write(self, folder: Path) -> None:
        (folder / MANIFEST).write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> EngineManifest:
        """Raises BundleError if nothing was built there, or the manifest is broken or has another format
        version.
        """
        path = folder / MANIFEST
        again = f"build again: h2o-build {folder.parent.parent} --target {folder.name} --force"
        try:
            raw = read_json(folder, again)
        except FileNotFoundError:
            raise BundleError(
                f"{folder}: no engines here: h2o-build {folder.parent.parent} --target {folder.name}"
            ) from None
        found = raw.get("format") if isinstance(raw, dict) else None
        if found != FORMAT:
            raise BundleError(f"{path}: engine format {found!r}, this version reads {FORMAT}; {again}")
        try:
            return cls.model_validate(raw)
        except ValidationError as error:
            raise invalid(path, error, again) from error


def bundle_sha256(bundle: Manifest) -> str:
    """One hash of a bundle's graphs and weights, computed from the hashes in its manifest: no file is
    read.
    """
    digest = hashlib.sha256()
    for name, spec in sorted(bundle.files.items()):
        if name.startswith("onnx/"):
            digest.update(f"{name} {spec.sha256}\n".encode())
    return digest.hexdigest()
