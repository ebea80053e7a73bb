"""Dense graphs on ONNX Runtime, on the CPU or a GPU, with inputs and outputs bound to the caller's memory."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from h2o_runtime.backend import HIDDEN, StepTensors, Tensors
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.bundles.manifest import GraphSpec, Manifest, unreadable
from h2o_runtime.bundles.onnx_model import read_model
from h2o_runtime.dense_graphs import cuda_provider, integer_product_trial
from h2o_runtime.dense_graphs.choice import ALL_PRECISIONS, DenseProducts, chosen_products
from h2o_runtime.dense_graphs.cuda_provider import unrecordable
from h2o_runtime.dense_graphs.fusion import fuse, names_functions
from h2o_runtime.dense_graphs.hidden import without_head
from h2o_runtime.dense_graphs.integer_products import multiply_integers
from h2o_runtime.dense_graphs.native import is_fast, is_fast_with_float16, multiply_natively, operators
from h2o_runtime.dense_graphs.packed import takes
from h2o_runtime.dense_graphs.packed_files import PackedFile, PackedFolder, sharing_head
from h2o_runtime.dense_graphs.whole_step import RewrittenGraph, multiply_in_integers, whole_step
from h2o_runtime.dense_graphs.widen import widen
from h2o_runtime.devices import Device, HostDevice
from h2o_runtime.errors import (
    BackendError,
    BundleError,
    ConfigError,
    OutOfMemoryError,
    short_of_memory,
)
from h2o_runtime.limits import MOST_STEP_ROWS
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.names import DenseChoice, DenseForm, DensePrecision, DensePrecisionChoice
from h2o_runtime.ort.cuda import import_onnxruntime, require_provider
from h2o_runtime.ort.session import BoundSession, open_session
from h2o_runtime.process import default_threads

log = logging.getLogger(__name__)

# Limit of an MLP's intermediate activations on a CPU, except for calls of few rows. More rows take more memory,
# where these activations are kept for all rows at once. With fewer rows, all weights are read more often, and
# threads wait for each other more often.
BETWEEN_BYTES, FEW_ROWS = 64 << 20, 512
STEP = "decode step"

Multiply = Callable[[Any, Path, int], tuple[Any, Mapping[str, NDArray[Any]]]]  # as `multiply_natively`


def rows_on_cpu(model: ModelSpec) -> int:
    """The number of prompt rows in one call of a dense graph."""
    return max(FEW_ROWS, BETWEEN_BYTES // (2 * 4 * max(model.intermediate_size, 1)))


class OnnxRuntimeBackend:
    """One session per dense graph, and on the CPU one more for a whole decode step, if it can be a single
    graph.

    On the CPU graphs are rewritten as they are loaded, by `dense_form`: see h2o_runtime.dense_graphs.native,
    .integer_products and .fusion; on a GPU: see .cuda_provider. Weights that stay as they are stay in the bundle's
    files and are mapped; those of products of our own are packed, in memory or in files of `packed`.

    On a GPU its calls can be recorded, if all its graphs can: see `unrecordable`. They use one stream, buffers of
    the caller, and scratch memory of an arena that never shrinks. So a replay finds everything where it was.
    """

    name = "onnxruntime"
    step_rows = MOST_STEP_ROWS

    def __init__(
        self,
        bundle: Bundle,
        threads: int | None = None,
        device: Device | None = None,
        dense_form: DenseChoice = "auto",
        packed: PackedFolder | None = None,
        dense_precision: DensePrecisionChoice = "auto",
    ) -> None:
        """Raises ConfigError for a folder of packed weights where none are packed."""
        self.bundle = bundle
        self.threads = threads or default_threads()
        self.device = device or HostDevice()
        on_cpu = self.device.memory == "cpu"
        self.most_rows = rows_on_cpu(bundle.manifest.model) if on_cpu else sys.maxsize
        products = DenseProducts("exact")
        if on_cpu:
            products = products_on_cpu(bundle.manifest, self.threads, dense_form, dense_precision)
        self.dense_form: DenseForm = products.form
        self._precision = products.precision
        self.dense_precision: DensePrecision | None = products.precision
        self.native_products = self.dense_form == "native"
        if packed is not None and not self.native_products:
            raise ConfigError(
                "`packed_weights` has no effect here: weights are packed only on a CPU with `dense_form=native`; "
                "leave it out",
                field="packed_weights",
            )
        self._packed = packed
        self._unrecordable: set[str] = set()  # operators
        self.model = as_computed(bundle.manifest.model, self.native_products)
        self._sessions: dict[str, BoundSession] = {}
        self._native_graphs: dict[str, RewrittenGraph] = {}  # sessions with native products
        self._weights: dict[str, Sequence[str]] = {}  # their files

    @property
    def recordable(self) -> bool:
        return self.device.memory != "cpu" and not self._unrecordable

    @functools.cached_property
    def integer_product(self) -> str | None:
        """On a GPU, the operator of products with integer weights."""
        if self.device.memory == "cpu" or not self.model.quantized:
            return None
        if self.model.dtype != "float16":
            return cuda_provider.MATMUL_NBITS
        shortcoming = integer_product_trial.shortcoming(self._session_on_gpu)
        if shortcoming:
            log.warning(
                "steps of 2 to 16 rows may be slower than they could be: our operator IntegerProduct does not work "
                "with this ONNX Runtime on this GPU, and MatMulNBits takes its place: %s",
                shortcoming,
            )
        return cuda_provider.MATMUL_NBITS if shortcoming else cuda_provider.INTEGER_PRODUCT

    def activate(self, only: Sequence[str] | None = None) -> None:
        """Load all graphs with weights, or those named in `only`.

        The largest come first: during its rewriting a graph is in memory several times, beside all graphs
        loaded so far.
        """
        manifest = self.bundle.manifest
        self._unnamed = False
        for graph in sorted(manifest.weighty_graphs(), key=lambda graph: -_bytes_of(graph, manifest)):
            if only is None or graph.name in only:
                self._sessions[graph.name] = self._load(graph)
        if self._unrecordable:
            log.warning(
                "decode runs step by step, because it cannot be recorded: ONNX Runtime may need the host for %s",
                ", ".join(sorted(self._unrecordable)),
            )
        if self._unnamed:
            log.warning(
                "%s: an earlier version exported it, and its graphs do not name their norms, gates and rotations: "
                "every step is slower than it could be; export the checkpoint again",
                self.bundle.folder,
            )

    def infer(self, graph: str, inputs: Tensors, outputs: Tensors) -> None:
        self._run(graph, self._loaded(graph).run, inputs, outputs)

    def bound(self, graph: str, inputs: Tensors, outputs: Tensors) -> Callable[[], None]:
        return functools.partial(self._run, graph, self._loaded(graph).bound(inputs, outputs))

    def load_hidden(self) -> None:
        if HIDDEN in self._sessions:
            return
        last = self.bundle.manifest.dense_graphs()[-1]
        path = self.bundle.path(last)
        self.bundle.held.check_places([last.file, *last.weights])
        model = without_head(read_model(path), path)
        self._weights[HIDDEN] = self._weights[last.name]
        if self.device.memory == "cpu":
            multiply = functools.partial(multiply_natively, precision=self._precision)
            if self.native_products:
                packed = PackedFile(self._native_graphs[last.name].weights)
                multiply = functools.partial(multiply, pack=packed.pack)
            session = BoundSession(self._open(self._rewritten(model, path, multiply), path.parent))
        else:
            session = self._open_on_gpu(self._for_gpu(model, path.parent), path.parent)
        self._sessions[HIDDEN] = session

    def load_draft(self) -> None:
        last = self._native_graphs[self.bundle.manifest.dense_graphs()[-1].name]
        tokens = self.model.drafted_tokens
        multiply = functools.partial(
            multiply_natively, pack=sharing_head(last.weights, tokens), precision=self._precision
        )
        for graph in self.bundle.manifest.draft_graphs():
            path = self._held(graph)
            model = read_model(path)
            for value in model.graph.output:
                if value.name == "logits":
                    value.type.tensor_type.shape.dim[1].dim_value = tokens
            rewritten = self._rewritten(model, path, multiply)
            for node in rewritten.model.graph.node:
                multiply_in_integers(node)
            self._sessions[graph.name] = BoundSession(self._open(rewritten, path.parent))

    def whole_step(self, tensors: StepTensors) -> Callable[[int], None] | None:
        names = [graph.name for graph in self.bundle.manifest.dense_graphs()]
        if not self._native_graphs.keys() >= set(names):
            return None
        self._weights[STEP] = [file for name in names for file in self._weights[name]]
        step = whole_step([self._native_graphs[name] for name in names], tensors, self.threads)
        folder = self.bundle.path(self.bundle.graph(names[0])).parent
        try:
            session = BoundSession(self._open(step, folder))
        except Exception as error:  # ONNX Runtime's exceptions have no common base class
            raise _failed(STEP, error) from error

        @functools.cache
        def bound(rows: int) -> Callable[[], None]:
            call = session.bound(tensors.inputs(rows), {"logits": tensors.logits[:rows]})
            return functools.partial(self._run, STEP, call)

        return lambda rows: bound(rows)()

    def deactivate(self) -> None:
        self._native_graphs.clear()
        self._sessions.clear()

    def _run(self, graph: str, run: Callable[..., None], *tensors: Tensors) -> None:
        try:
            run(*tensors)
        except Exception as error:  # ONNX Runtime's exceptions have no common base class
            raise _failed(graph, error) from error
        self.bundle.held.check(self._weights[graph])

    def _open(self, rewritten: RewrittenGraph, folder: Path) -> Any:
        library = operators() if self.native_products else None
        return open_session(
            rewritten.model.SerializeToString(),
            self.threads,
            beside=folder,
            operators=library,
            weights=rewritten.weights,
        )

    def _for_gpu(self, model: Any, folder: Path) -> Any:
        model = cuda_provider.with_own_kernels(model)
        if self.integer_product is None:
            return model
        own = self.integer_product == cuda_provider.INTEGER_PRODUCT
        return cuda_provider.without_dequantization(model, folder, own)

    def _open_on_gpu(self, model: Any, folder: Path) -> BoundSession:
        session = self._session_on_gpu(model.SerializeToString(), folder)
        return BoundSession(session, self.device.memory, stages=bool(unrecordable(model)))

    def _session_on_gpu(self, model: bytes, folder: Path | None = None) -> Any:
        require_provider(import_onnxruntime())  # without it our operators are of no use
        # Threads of its own would be idle.
        library = cuda_provider.operators()
        return open_session(model, threads=1, device=self.device, beside=folder, operators=library)

    def _loaded(self, graph: str) -> BoundSession:
        try:
            return self._sessions[graph]
        except KeyError:
            raise BackendError(f"graph {graph} is not loaded: activate the backend first") from None

    def _held(self, graph: GraphSpec) -> Path:
        """The graph's file; from now on its weights are looked after."""
        self.bundle.held.hold([graph.file, *graph.weights])
        self._weights[graph.name] = graph.weights
        return self.bundle.path(graph)

    def _hold_packed(self, graph: GraphSpec) -> None:
        """As `_held`, for the file of its packed weights, if that is mapped."""
        if self._packed is None or graph.name in self._packed.unkept:
            return
        file = str(self._packed.file(graph, self.bundle.manifest, self._precision).absolute())
        self.bundle.held.hold([file])
        self._weights[graph.name] = [*graph.weights, file]

    def _load(self, graph: GraphSpec) -> BoundSession:
        path = self._held(graph)
        try:
            model = read_model(path)
            if self.device.memory == "cpu":
                self._unnamed |= graph.kind == "dense" and not names_functions(model)
                rewritten = self._rewritten(model, path, self._multiplying(graph))
                session = BoundSession(self._open(rewritten, path.parent))
                if rewritten.native:
                    self._native_graphs[graph.name] = rewritten
                    self._hold_packed(graph)
            else:
                model = self._for_gpu(model, path.parent)
                self._unrecordable |= unrecordable(model)
                session = self._open_on_gpu(model, path.parent)
            return session
        except (BackendError, BundleError):
            raise
        except PermissionError as error:
            raise unreadable(Path(error.filename or path), error) from error
        except Exception as error:  # ONNX Runtime's exceptions have no common base class
            if short_of_memory(error):
                raise OutOfMemoryError(f"{path} cannot be loaded") from error
            raise BundleError(
                f"{path}: ONNX Runtime cannot load it: {_first_line(error)}; export the checkpoint again"
            ) from error

    def _multiplying(self, graph: GraphSpec) -> Multiply:
        """Gives a graph of the bundle native products, with weights from files of packed ones if there are such."""
        if self._packed is None:
            return functools.partial(multiply_natively, precision=self._precision)
        manifest, precision = self.bundle.manifest, self._precision
        return functools.partial(
            self._packed.multiply_natively, graph=graph, manifest=manifest, precision=precision
        )

    def _rewritten(self, model: Any, path: Path, multiply: Multiply) -> RewrittenGraph:
        """The graph from `path` as ONNX Runtime's CPU runs it fastest, and weights that it only names.

        multiply: what gives it native products

        Those that stay as they are stay in their files.
        """
        weights: Mapping[str, NDArray[Any]] = {}
        if self.model.dtype != self.bundle.manifest.model.dtype:
            model = widen(model, path)
        native = self.native_products and takes(model.graph)
        if native:
            model, weights = multiply(model, path, self.threads)
        model = fuse(model)
        if not native and self.dense_form != "exact":
            model = multiply_integers(model, path.parent)
        return RewrittenGraph(model, weights, native)


def products_on_cpu(
    manifest: Manifest, threads: int, form: DenseChoice, precision: DensePrecisionChoice
) -> DenseProducts:
    """Of the products with a bundle's weights. Those with integers are as h2o-bench dense measured them.

    Weights of float16 take twice their memory as float32, so our own products multiply them in bfloat16 alone,
    unless they are asked for.
    """
    model = manifest.model
    if model.quantized and form == "auto" and precision != "bfloat16":
        return chosen_products(manifest, threads, ALL_PRECISIONS if precision == "auto" else (precision,))
    if precision == "auto":
        half = model.dtype == "float16" and not model.quantized
        rounds = half and form in ("auto", "native") and is_fast_with_float16()
        precision = "bfloat16" if rounds else "float32"
    if form == "auto":
        form = "native" if is_fast() and (model.dtype == "float32" or precision == "bfloat16") else "exact"
    return DenseProducts(form, precision)


def as_computed(model: ModelSpec, native: bool) -> ModelSpec:
    """The model with the dtype of its activations, with products of our own or without."""
    return model.model_copy(update={"dtype": "float32"}) if native else model


def _bytes_of(graph: GraphSpec, manifest: Manifest) -> int:
    return sum(manifest.files[file].bytes for file in graph.weights)


def _failed(graph: str, error: Exception) -> BackendError:
    if short_of_memory(error):
        return OutOfMemoryError(f"ONNX Runtime needs more in {graph}")
    return BackendError(f"ONNX Runtime failed in {graph}: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
