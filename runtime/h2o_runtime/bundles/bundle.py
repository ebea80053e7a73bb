"""Opens a bundle: reads its manifest, and checks that every file is there, complete and as described."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from h2o_runtime.bundles.held import HeldFiles
from h2o_runtime.bundles.manifest import AGAIN, GraphSpec, Manifest, TensorSpec, file_sha256, unreadable
from h2o_runtime.bundles.onnx_model import GraphFile, Interface
from h2o_runtime.errors import BundleError
from h2o_runtime.files.inputs import confined
from h2o_runtime.layers import state_layout
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.operators import DOMAIN, VERSION


@dataclass(frozen=True)
class Bundle:
    folder: Path
    manifest: Manifest

    @classmethod
    def open(cls, folder: str | Path, check_graphs: bool = True) -> Bundle:
        """Read the manifest and compare file sizes and graphs with it; `verify` checks hashes.

        Without `check_graphs` the caller compares the graphs one by one. Raises BundleError with the first
        file that is missing, has another size, is outside the folder, or holds another graph than the
        manifest says.
        """
        bundle = cls(Path(folder), Manifest.read(Path(folder)))
        bundle._check_files()
        _check_model(bundle.folder, bundle.manifest)
        for graph in bundle.manifest.graphs if check_graphs else ():
            bundle._check_graph(graph)
        return bundle

    @cached_property
    def held(self) -> HeldFiles:
        """Those that are in use as long as the bundle is loaded."""
        return HeldFiles(self.folder)

    def path(self, graph: GraphSpec) -> Path:
        return self.folder / graph.file

    def graph(self, name: str) -> GraphSpec:
        for graph in self.manifest.graphs:
            if graph.name == name:
                return graph
        raise BundleError(f"{self.folder}: the manifest lists no graph '{name}'; {AGAIN}")

    def small_graphs(self, layer: int) -> tuple[GraphSpec, ...]:
        """The graphs of a layer's kind besides the dense graphs."""
        end = f"_{layer:02d}"
        small = (graph for graph in self.manifest.weighty_graphs() if graph.kind != "dense")
        return tuple(graph for graph in small if graph.name.endswith(end))

    def altered_files(self) -> list[str]:
        """Files whose content is not what the exporter wrote, by SHA-256. Reads everything."""
        return [
            name
            for name, spec in self.manifest.files.items()
            if file_sha256(self.folder / name) != spec.sha256
        ]

    def verify(self) -> None:
        """Raises BundleError if a file's content is not what the exporter wrote. Reads everything."""
        altered = self.altered_files()
        if altered:
            more = f", nor that of {len(altered) - 1} more files" if altered[1:] else ""
            raise BundleError(
                f"{self.folder / altered[0]}: its content is not what was exported{more}: damaged or edited; "
                f"{AGAIN}"
            )

    def _check_files(self) -> None:
        for graph in self.manifest.graphs:
            for name in (graph.file, *graph.weights):
                confined(self.folder, name)
        for name, spec in self.manifest.files.items():
            path = confined(self.folder, name)
            try:
                size = path.stat().st_size
            except PermissionError as error:
                raise unreadable(path, error) from error
            except OSError:
                raise BundleError(f"{path}: missing from the bundle; {AGAIN}") from None
            if size != spec.bytes:
                raise BundleError(
                    f"{path}: has {size:,} bytes, the manifest says {spec.bytes:,}: truncated or replaced; {AGAIN}"
                )

    def _check_graph(self, graph: GraphSpec) -> None:
        """Name, interface, operator sets and weight files, according to the graph's own file."""
        path = self.path(graph)
        found = GraphFile.read(path)
        if found.name != graph.name:
            raise BundleError(f"{path}: holds the graph {found.name!r}, not {graph.name!r}; {AGAIN}")
        for kind, given, said in (
            ("inputs", found.inputs, graph.inputs),
            ("outputs", found.outputs, graph.outputs),
        ):
            if given != _interface(said):
                raise BundleError(
                    f"{path}: its {kind} are {_in_words(given)}, the manifest says {_in_words(_interface(said))}; "
                    f"{AGAIN}"
                )
        for domain, version in found.opsets.items():
            said_version = self.manifest.opset.get(domain, version)
            if version != said_version:
                raise BundleError(
                    f"{path}: has version {version} of the operators of {domain or 'ONNX'}, the manifest says "
                    f"{said_version}; {AGAIN}"
                )
        here = PurePosixPath(graph.file).parent
        foreign = sorted(name for name in found.external if str(here / name) not in graph.weights)
        if foreign:
            raise BundleError(
                f"{path}: reads weights from {foreign[0]!r}, which the manifest does not list; {AGAIN}"
            )


def _check_model(folder: Path, manifest: Manifest) -> None:
    """Checks the manifest alone: whether it agrees with itself and with this version."""
    path = folder / "manifest.json"
    if manifest.opset.get(DOMAIN, VERSION) != VERSION:
        raise BundleError(
            f"{path}: uses version {manifest.opset[DOMAIN]} of the {DOMAIN} operators, but this installation has "
            f"version {VERSION}; {AGAIN} with it"
        )
    dense, layers = manifest.dense_graphs(), manifest.model.layers
    if len(dense) != layers + 1:
        raise BundleError(
            f"{path}: lists {len(dense)} dense graphs, and a model of {layers:,} layers has {layers + 1:,}; {AGAIN}"
        )
    drafts = [graph.name for graph in manifest.draft_graphs()]
    if drafts != _names_of_draft(manifest.model):
        raise BundleError(f"{path}: its draft graphs are not those of its draft layer; {AGAIN}")
    for index, graph in enumerate(dense):
        expected = _row_shapes(manifest.model, index)
        name = f"dense_{index:02d}"
        if graph.name != name:
            raise BundleError(f"{path}: dense graph {index} is {graph.name!r}, not {name!r}; {AGAIN}")
        for tensor in (*graph.inputs, *graph.outputs):
            shape = expected.get(tensor.name)
            if shape is not None and tensor.shape[1:] != shape:
                raise BundleError(
                    f"{path}: '{tensor.name}' of {name} has rows of {list(tensor.shape[1:])}, the model's are "
                    f"{list(shape)}; {AGAIN}"
                )


def _names_of_draft(model: ModelSpec) -> list[str]:
    """Of the graphs of its draft layer."""
    if model.draft is None:
        return []
    return ["draft_00", "draft_01", *(["draft_absorb", "draft_contract"] if model.draft.shared else [])]


def _row_shapes(model: ModelSpec, index: int) -> dict[str, tuple[int, ...]]:
    """Bytes per token of the tensors of a dense graph, which follows layer `index` - 1."""
    hidden = (model.hidden_size,)
    shapes: dict[str, tuple[int, ...]] = {"residual": hidden, "residual_out": hidden, "embedded": hidden}
    shapes["logits"] = (model.vocab_size,)
    shapes["hidden"] = hidden
    if index > 0:
        spec = model.layer(index - 1)
        shapes["attention"] = spec.query_heads, spec.out_size
        shapes["gate"] = (spec.gate_size,)
    if index < model.layers:
        spec = model.layer(index)
        shapes["q"] = spec.query_heads, spec.query_size
        shapes["k"] = shapes["v"] = spec.row.heads, spec.row.size
        shapes["gate_out"] = (spec.gate_size,)
        if layout := state_layout(spec, model.dtype):
            shapes |= {name: row.shape for name, row in layout.new.items()}
            shapes |= {name: layout.new[tail.output].shape for name, tail in layout.tails.items()}
    return shapes


def _interface(tensors: Iterable[TensorSpec]) -> Interface:
    return {tensor.name: (tensor.dtype, tensor.shape) for tensor in tensors}


def _in_words(interface: Interface) -> str:
    return ", ".join(
        f"{name} {dtype}[{', '.join(map(str, shape))}]" for name, (dtype, shape) in interface.items()
    )
