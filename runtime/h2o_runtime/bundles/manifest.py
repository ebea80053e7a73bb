"""`manifest.json`: the contents of a bundle. The exporter writes it, everything else reads it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PlainSerializer, PlainValidator, ValidationError

from h2o_runtime.errors import BundleError
from h2o_runtime.files.inputs import confined
from h2o_runtime.layer_spec import Strict
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.names import Pooling
from h2o_runtime.policies.prefill import PREFILL, PrefillPolicy

FORMAT = 1
MANIFEST = "manifest.json"
AGAIN = "export the checkpoint again"
DType = Literal["float32", "float16", "int64", "int32"]


def _read_prefill(value: Any) -> PrefillPolicy[Any]:
    if isinstance(value, PrefillPolicy):
        return value
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return PREFILL.make(value)


Prefill = Annotated[
    PrefillPolicy[Any],
    PlainValidator(_read_prefill),
    PlainSerializer(PREFILL.settings_of),
]


class TensorSpec(Strict):
    """One input or output of a graph; a dimension is a number or the name of a free size."""

    name: str
    dtype: DType
    shape: tuple[int | str, ...]


class FreeSize(Strict):
    """A free size of a graph's tensors.

    counts  rows: tokens of a call; logits: tokens whose logits are computed at once; cache: rows of the
            caches; slots: entries of a list of rows
    most    the largest value, if the bundle fixes it
    """

    name: str
    counts: Literal["rows", "logits", "cache", "slots"]
    most: int | None = Field(default=None, gt=0)


class FreeSizes(Strict):
    """The sizes that a graph accepts.

    spans  inputs int64 that hold rows of the cache: [start, stop), or where it stops alone
    step   whether decode runs the graph too, with one row
    """

    sizes: tuple[FreeSize, ...]
    spans: tuple[str, ...] = ()
    step: bool = False


class GraphSpec(Strict):
    """A graph of a bundle.

    kind  dense: from one layer's attention to the next; draft: the same of the layer that drafts; latent, layer: a
          step of a layer's kind beside the dense graphs; attention: an attention graph, without weights
    """

    name: str
    file: str
    kind: Literal["dense", "draft", "latent", "layer", "attention"]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    weights: tuple[str, ...] = ()  # files, relative to the bundle
    free: FreeSizes


class FileSpec(Strict):
    bytes: int = Field(ge=0)
    sha256: str


class EmbeddingSpec(Strict):
    """How the model pools hidden states to an embedding, and whether it divides that by its length."""

    pooling: Pooling = Pooling.MEAN
    normalized: bool = True


class CheckpointSpec(Strict):
    """adapter  the folder of the adapter that was merged into it; `sha256` is then of both"""

    source: str
    sha256: str
    adapter: str | None = None


class TokenCheck(Strict):
    """Token ids of texts, compared with those of `reference`. Without one, ids only have to give the text back."""

    texts: int
    wrong: int
    reference: str | None = None


class Validation(Strict):
    """Errors relative to the checkpoint under transformers, measured at export.

    With integer weights, the reference is the checkpoint with equally rounded weights; `quantization_error`
    is the relative error of the logits that the rounding causes. The divergence is that of the bundle's predictions
    from those of the checkpoint's own weights.
    """

    tokens: int
    reference: str
    max_abs_error: float
    max_abs_value: float
    relative_error: float  # Frobenius norm of the error divided by that of the reference
    tolerance: float
    layers: tuple[float, ...]  # relative error of each layer's hidden states
    passed: bool
    quantization_error: float | None = None
    divergence: float | None = (
        None  # Kullback-Leibler, in nats a token; None: an earlier version wrote the bundle
    )
    divergence_limit: float | None = None
    perplexity_loss: float | None = None  # of integer weights, as a share of the checkpoint's perplexity
    token_ids: TokenCheck | None = None  # None: an earlier version wrote the bundle


class Manifest(Strict):
    format: int = FORMAT
    created_by: dict[str, str]  # package → version
    opset: dict[str, int]  # ONNX domain → version
    checkpoint: CheckpointSpec
    model: ModelSpec
    prefill: Prefill  # default for this bundle
    graphs: tuple[GraphSpec, ...]
    files: dict[str, FileSpec]
    validation: Validation | None = None
    embedding: EmbeddingSpec = EmbeddingSpec()  # a mean, where the checkpoint does not say it

    def dense_graphs(self) -> tuple[GraphSpec, ...]:
        """dense_00 … dense_n in the order of the model."""
        return tuple(graph for graph in self.graphs if graph.kind == "dense")

    def draft_graphs(self) -> tuple[GraphSpec, ...]:
        """Those of the draft layer, before and after its attention; none without such a layer."""
        return tuple(graph for graph in self.graphs if graph.kind == "draft")

    def weighty_graphs(self) -> tuple[GraphSpec, ...]:
        """All graphs with weights that every run needs; a backend executes them."""
        return tuple(graph for graph in self.graphs if graph.kind not in ("attention", "draft"))

    @property
    def identity(self) -> str:
        """SHA-256 over its graphs and weights: bundles with the same hash compute the same numbers."""
        files = {name: file.sha256 for name, file in self.files.items() if name.startswith("onnx/")}
        return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()

    def write(self, folder: Path) -> None:
        (folder / MANIFEST).write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Raises BundleError if the manifest is missing or broken, or has another format version."""
        path = folder / MANIFEST
        try:
            str(folder).encode()
            if folder.is_file():
                raise BundleError(
                    f"{folder}: is a file, not a bundle; if it is a checkpoint, export it first: "
                    f"h2o-export {folder} -o {folder.stem}, and name the folder {folder.stem} then"
                )
            if not folder.is_dir():
                raise BundleError(f"{folder}: no such folder; h2o-export writes a bundle from a checkpoint")
            raw = read_json(folder, AGAIN)
        except PermissionError as error:  # of a folder above
            raise unreadable(path, error) from error
        except UnicodeEncodeError:
            raise BundleError(
                f"{str(folder)!a}: its name is not UTF-8, and ONNX Runtime reads no such files: rename the folder"
            ) from None
        except FileNotFoundError:
            hint = (
                f": it looks like a checkpoint, run h2o-export {folder} -o BUNDLE"
                if (folder / "config.json").exists()
                else "; h2o-export writes one from a checkpoint"
            )
            raise BundleError(f"{folder}: no {MANIFEST}, so this is not a bundle{hint}") from None
        if not isinstance(raw, dict) or raw.get("format") != FORMAT:
            found = raw.get("format") if isinstance(raw, dict) else None
            raise BundleError(
                f"{path}: bundle format {found!r}, this version reads {FORMAT}; export again with it"
            )
        try:
            return cls.model_validate(raw)
        except ValidationError as error:
            if error.errors()[0]["type"] == "extra_forbidden":
                where = ".".join(map(str, error.errors()[0]["loc"]))
                raise BundleError(
                    f"{path}: {where} is not known: a later version may have written it; install that version, "
                    "or export the checkpoint again with this one"
                ) from error
            raise invalid(path, error, AGAIN) from error


def read_json(folder: Path, again: str) -> Any:
    """The parsed manifest of a folder; `again` is the advice where it is broken.

    Raises FileNotFoundError where there is none, and BundleError.
    """
    path = folder / MANIFEST
    try:
        return json.loads(confined(folder, MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise
    except PermissionError as error:
        raise unreadable(path, error) from error
    except (OSError, ValueError, RecursionError) as error:  # also numbers too long, brackets too deep
        raise BundleError(f"{path}: cannot be read as JSON ({error}); {again}") from error


def invalid(path: Path, error: ValidationError, again: str) -> BundleError:
    """For a manifest that is not what its class says."""
    first = error.errors()[0]
    where, says = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
    return BundleError(f"{path}: {where}: {says}; {again}")


def file_sha256(path: Path) -> str:
    """Hash of a file's content, read in blocks of 1 MiB."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def unreadable(path: Path, error: OSError) -> BundleError:
    """A file that exists or may exist: another export or build would not help."""
    return BundleError(f"{path}: cannot be read: {error.strerror}; check its permissions and its folder's")
