"""Every graph of a bundle separately: the runtime's backend or attention provider against a float64 twin."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from polygraphy.backend.base import BaseRunner
from polygraphy.backend.onnxrt import OnnxrtRunner
from polygraphy.comparator import Comparator, RunResults
from polygraphy.json import save_json

from h2o_export.attention_graphs import AttentionStep, Feed, Room
from h2o_export.comparison.compared import ComparedBundle
from h2o_export.comparison.engines import AttentionEngines
from h2o_export.comparison.report import (
    BFLOAT16_TOLERANCE,
    RELATIVE_TOLERANCE,
    ROUNDING_TOLERANCE,
    Row,
    compare_runs,
)
from h2o_export.comparison.runners import BackendRunner, StepRunner
from h2o_export.comparison.twin import save_twin
from h2o_export.layers import LayerKind, kind_named
from h2o_export.policies import POLICIES, policy_steps
from h2o_runtime.attention.provider import AttentionProvider
from h2o_runtime.backend import Backend
from h2o_runtime.bundles.manifest import GraphSpec, TensorSpec
from h2o_runtime.engines import TARGETS, EngineManifest
from h2o_runtime.errors import BundleError, ConfigError, OutputError
from h2o_runtime.files.outputs import check_outside_bundles
from h2o_runtime.names import ProviderChoice
from h2o_runtime.ort.cuda import import_onnxruntime
from h2o_runtime.ort.session import open_session
from h2o_runtime.process import default_threads

Progress = Callable[[str], None]


class GraphComparison:
    """Runs graphs on equal inputs. With `save`, writes Polygraphy's input and output files for each graph."""

    def __init__(self, compared: ComparedBundle, save: Path | None) -> None:
        self.compared = compared
        self.bundle = compared.bundle
        self.model = self.bundle.manifest.model
        self.save = save
        if save is not None:
            _make_folder(save)
        self.share = RELATIVE_TOLERANCE[self.model.dtype]

    def dense(self, ids: Sequence[int], progress: Progress) -> Iterator[Row]:
        """Each dense graph on realistic inputs: the reference's outputs are the next graph's inputs.

        Integer weights are first multiplied as floats, which finds errors, and then in the dense form in use,
        which rounds activations too.
        """
        known: Feed = {"tokens": np.array(ids, np.int64), "positions": np.arange(len(ids), dtype=np.int64)}
        backend = self.compared.exact.open_backend(len(ids))
        lent: dict[int | None, Feed] = {}  # keys and values by the layer that others read them of
        rounding = self.compared.open_backend(len(ids)) if self.compared.rounds_activations else None
        for index, graph in enumerate(self.bundle.manifest.dense_graphs()):
            if index:
                known.setdefault("embedded", known["residual_out"])  # what begins the residual stream
                spec = self.model.layer(index - 1)
                kind = kind_named(spec.kind)
                yield from self._small_graphs(kind, index - 1, known, backend, progress)
                if spec.lends:
                    lent[index - 1] = {name: known[name] for name in "kv"}
                seen = known | lent.get(spec.source, {})
                known |= {"attention": kind.reference(seen, spec), "residual": known["residual_out"]}
                known |= {"gate": known["gate_out"]} if spec.gate_size else {}
            progress(graph.name)
            feed = {spec.name: _given(spec, known).astype(np.dtype(spec.dtype)) for spec in graph.inputs}
            results = self._dense_graph(graph, feed, backend)
            yield from compare_runs("dense", graph.name, results, self.share)
            if rounding is not None:
                rounded = self._dense_graph(graph, feed, rounding)
                share = ROUNDING_TOLERANCE if self.model.quantized else BFLOAT16_TOLERANCE
                yield from compare_runs("rounding", graph.name, rounded, share)
            known |= {name: np.asarray(value) for name, value in results[0][1][0].items()}

    def _small_graphs(
        self, kind: LayerKind, layer: int, known: Feed, backend: Backend, progress: Progress
    ) -> Iterator[Row]:
        """The graphs beside a layer's dense graph; their outputs replace tensors of `known` with that
        name.
        """
        outputs: Feed = {}
        for graph in self.bundle.small_graphs(layer):
            progress(graph.name)
            stem = graph.name.removesuffix(f"_{layer:02d}")
            given = kind.small_inputs(stem, known, outputs, self.model.layer(layer))
            feed = {spec.name: given[spec.name].astype(np.dtype(spec.dtype)) for spec in graph.inputs}
            results = self._dense_graph(graph, feed, backend)
            yield from compare_runs("dense", graph.name, results, self.share)
            outputs |= {name: np.asarray(value) for name, value in results[0][1][0].items()}
        known |= outputs

    def _dense_graph(self, graph: GraphSpec, feed: Feed, backend: Backend) -> RunResults:
        backend.activate(only=[graph.name])
        results = self._run(graph, feed, [BackendRunner(backend, graph, self.compared.device)])
        backend.deactivate()
        return results

    def attention(self, providers: Sequence[ProviderChoice], progress: Progress) -> Iterator[Row]:
        """Each attention graph on random inputs, by every named provider, and by its engine if there is one.

        The error of a lower precision is compared separately, as a rounding, for the first provider.
        """
        for name in providers:
            yield from self._attention_of(
                self.compared.open_attention(name, "float32"), "attention", progress
            )
        lower = self.compared.open_attention(providers[0], self.compared.attention_precision)
        if getattr(lower, "precision", "float32") != "float32":
            yield from self._attention_of(lower, "rounding", progress)
        if self.compared.backend != "onnxruntime" and TARGETS[self.compared.backend].plugins:
            engines = AttentionEngines(self.bundle, self.compared.backend)
            room = self._room(engines.manifest)
            for step in self._steps:
                progress(f"{step.name}, {self.compared.backend}")
                yield from self._attention_graph(step, engines.runner(self.bundle.graph(step.name)), room)

    def _attention_of(self, provider: AttentionProvider, stage: str, progress: Progress) -> Iterator[Row]:
        room = Room(self._rows, self._rows, self._rows)
        for shape, steps in groupby(self._steps, lambda step: step.own_shape(self.model)):
            provider.activate(shape)
            for step in steps:
                progress(f"{step.name}, {provider.name}")
                runner = StepRunner(provider, step, self.bundle.graph(step.name), self.compared.device)
                yield from self._attention_graph(step, runner, room, stage)
            provider.deactivate()

    @property
    def _steps(self) -> tuple[AttentionStep, ...]:
        return policy_steps(self.bundle.manifest.prefill, self.model.windows)

    @property
    def _rows(self) -> int:
        prefill = self.bundle.manifest.prefill
        return POLICIES.of(prefill).rows(prefill)

    def _room(self, engines: EngineManifest) -> Room:
        if engines.max_context < self._rows:
            raise ConfigError(
                f"the engines were built for a context of {engines.max_context}, and attention graphs are compared "
                f"on {self._rows} rows: build them for {self._rows} at least, or leave out the stage attention",
                field="max_context",
            )
        return Room(self._rows, engines.max_context, engines.batch_size)

    def _attention_graph(
        self, step: AttentionStep, runner: BaseRunner, room: Room, stage: str = "attention"
    ) -> Iterator[Row]:
        graph = self.bundle.graph(step.name)
        if stage == "rounding" and any(np.dtype(spec.dtype).kind != "f" for spec in graph.outputs):
            return  # rounded votes may choose other tokens
        feed = step.feed(step.own_shape(self.model), room, np.random.default_rng(7))
        if {spec.name for spec in graph.inputs} != feed.keys():
            raise BundleError(
                f"{self.bundle.path(graph)}: it has other inputs than this version's {step.name}: export the "
                "checkpoint again"
            )
        share = self.share if stage == "attention" else BFLOAT16_TOLERANCE
        yield from compare_runs(stage, step.name, self._run(graph, feed, [runner]), share)

    def _run(self, graph: GraphSpec, feed: Feed, mine: list[BaseRunner]) -> RunResults:
        with tempfile.TemporaryDirectory(prefix="h2o-compare-") as folder:
            twin = save_twin(self.bundle.path(graph), Path(folder))
            import_onnxruntime()
            try:
                session = open_session(str(twin), self.compared.threads or default_threads(), optimize=False)
            except Exception as error:  # ONNX Runtime's exceptions have no common base class
                first = (str(error).strip() or type(error).__name__).splitlines()[0]
                raise BundleError(f"{self.bundle.path(graph)}: not a sound graph: {first}") from error
            runners = [OnnxrtRunner(session, name="float64"), *mine]
            results: RunResults = Comparator.run(runners, data_loader=[feed])
        if self.save is not None:
            save_json([feed], str(self.save / f"{graph.name}.inputs.json"))
            results.save(str(self.save / f"{graph.name}.outputs.json"))
        return results


def _given(spec: TensorSpec, known: Feed) -> NDArray[Any]:
    """What is known, a row a token; of tokens before there are none, and zeros stand for them."""
    sizes = [size for size in spec.shape if isinstance(size, int)]
    return known[spec.name] if len(sizes) < len(spec.shape) else np.zeros(sizes)


def _make_folder(folder: Path) -> None:
    check_outside_bundles(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: cannot write there: {error.strerror}") from error
