"""Opening a bundle: its manifest, and the check that every file is there and whole."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from h2o_runtime.confined import confined
from h2o_runtime.errors import BundleError
from h2o_runtime.manifest import GraphSpec, Manifest, file_sha256


@dataclass(frozen=True)
class Bundle:
    folder: Path
    manifest: Manifest

    @classmethod
    def open(cls, folder: str | Path) -> Bundle:
        """Read the manifest and compare file sizes with it; hashes are for `altered_files`.

        Raises BundleError that names the first file which is missing, has another size or is not in the folder.
        """
        bundle = cls(Path(folder), Manifest.read(Path(folder)))
        for graph in bundle.manifest.graphs:
            for name in (graph.file, *graph.weights):
                confined(bundle.folder, name)
        for name, spec in bundle.manifest.files.items():
            path = confined(bundle.folder, name)
            try:
                size = path.stat().st_size
            except OSError:
                raise BundleError(f"{path}: missing from the bundle; export the checkpoint again") from None
            if size != spec.bytes:
                raise BundleError(
                    f"{path}: has {size:,} bytes, the manifest says {spec.bytes:,}: truncated or replaced; "
                    "export the checkpoint again"
                )
        return bundle

    def path(self, graph: GraphSpec) -> Path:
        return self.folder / graph.file

    def graph(self, name: str) -> GraphSpec:
        for graph in self.manifest.graphs:
            if graph.name == name:
                return graph
        raise BundleError(f"{self.folder}: the manifest lists no graph '{name}'; export the checkpoint again")

    def altered_files(self) -> list[str]:
        """Files whose content is not what the exporter wrote, by SHA-256. Reads everything."""
        return [
            name
            for name, spec in self.manifest.files.items()
            if file_sha256(self.folder / name) != spec.sha256
        ]
