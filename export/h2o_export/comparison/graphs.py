"""Every graph of a bundle by itself: the runtime's backend or attention provider against a float64 twin."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from polygraphy.backend.base import BaseRunner
from polygraphy.backend.onnxrt import OnnxrtRunner
from polygraphy.comparator import Comparator, RunResults
from polygraphy.json import save_json

from h2o_export.comparison.engines import AttentionEngines
from h2o_export.comparison.feeds import Sizes, attention_feed
from h2o_export.comparison.report import RELATIVE_TOLERANCE, Row, compare_runs
from h2o_export.comparison.runners import BackendRunner, Feed, ProviderRunner
from h2o_export.comparison.subject import Subject
from h2o_export.comparison.twin import save_twin
from h2o_runtime.attention.select import make_provider
from h2o_runtime.engines import TARGETS
from h2o_runtime.errors import BundleError, OutputError
from h2o_runtime.manifest import GraphSpec
from h2o_runtime.ort.library import import_onnxruntime
from h2o_runtime.ort.session import open_session
from h2o_runtime.process import default_threads

Progress = Callable[[str], None]


class GraphComparison:
    """Runs graphs on equal inputs. With `save`, writes Polygraphy's input and output files for each graph."""

    def __init__(self, subject: Subject, save: Path | None) -> None:
        self.subject = subject
        self.bundle = subject.bundle
        self.model = self.bundle.manifest.model
        self.save = save
        if save is not None:
            _make_folder(save)
        self.share = RELATIVE_TOLERANCE[self.model.dtype]

    def dense(self, ids: Sequence[int], progress: Progress) -> Iterator[Row]:
        """Each dense graph on what really reaches it: the truth's outputs run on into the next graph."""
        feed: Feed = {"tokens": np.array(ids, np.int64), "positions": np.arange(len(ids), dtype=np.int64)}
        rope: Feed = {}
        backend = self.subject.open_backend(len(ids))
        for graph in self.bundle.manifest.dense_graphs():
            progress(graph.name)
            backend.activate(only=[graph.name])
            results = self._run(graph, feed, [BackendRunner(backend, graph, self.subject.device)])
            backend.deactivate()
            yield from compare_runs("dense", graph.name, results, {}, self.share)
            truth = {name: np.asarray(value) for name, value in results[0][1][0].items()}
            rope = rope or {name: truth[name] for name in ("cos", "sin")}
            if "q" in truth:
                dtype = np.dtype(self.model.dtype)
                residual, attention = truth["residual_out"], _causal_attention(truth, self.model.scale)
                feed = {"attention": attention.astype(dtype), "residual": residual.astype(dtype)}
                feed |= rope if graph is not self.bundle.manifest.dense_graphs()[-2] else {}

    def attention(self, providers: Sequence[str], progress: Progress) -> Iterator[Row]:
        """Each attention graph on random inputs, by every provider named, and by its engine where there is one."""
        config, device = self.bundle.manifest.prefill, self.subject.device
        for name in providers:
            provider = make_provider(name, self.bundle, device, self.subject.threads)
            provider.activate(self.model.attention)
            for graph in self._attention_graphs():
                progress(f"{graph.name}, {provider.name}")
                runner = ProviderRunner(provider, graph, config, device)
                yield from self._attention_graph(graph, runner, Sizes.few(config))
            provider.deactivate()
        if self.subject.backend != "onnxruntime" and TARGETS[self.subject.backend].plugins:
            engines = AttentionEngines(self.bundle, self.subject.backend)
            for graph in self._attention_graphs():
                progress(f"{graph.name}, {self.subject.backend}")
                sizes = Sizes.of(engines.manifest)
                yield from self._attention_graph(graph, engines.runner(graph), sizes)

    def _attention_graphs(self) -> list[GraphSpec]:
        return [graph for graph in self.bundle.manifest.graphs if graph.kind == "attention"]

    def _attention_graph(self, graph: GraphSpec, subject: BaseRunner, sizes: Sizes) -> Iterator[Row]:
        results = self._run(graph, attention_feed(self.bundle, graph, sizes), [subject])
        yield from compare_runs("attention", graph.name, results, {}, self.share)

    def _run(self, graph: GraphSpec, feed: Feed, subjects: list[BaseRunner]) -> RunResults:
        with tempfile.TemporaryDirectory(prefix="h2o-compare-") as folder:
            twin = save_twin(self.bundle.path(graph), Path(folder))
            import_onnxruntime()
            try:
                session = open_session(str(twin), self.subject.threads or default_threads(), optimize=False)
            except Exception as error:  # ONNX Runtime's exceptions have no common base of their own
                first = (str(error).strip() or type(error).__name__).splitlines()[0]
                raise BundleError(f"{self.bundle.path(graph)}: not a sound graph: {first}") from error
            runners = [OnnxrtRunner(session, name="float64"), *subjects]
            results: RunResults = Comparator.run(runners, data_loader=[feed])
        if self.save is not None:
            save_json([feed], str(self.save / f"{graph.name}.inputs.json"))
            results.save(str(self.save / f"{graph.name}.outputs.json"))
        return results


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: cannot write there: {error.strerror}") from error


def _causal_attention(qkv: Feed, scale: float) -> NDArray[np.float64]:
    """Plain causal attention in float64 between two dense graphs. q [n, Hq, d]; k, v [n, Hkv, d]."""
    q, k, v = (qkv[name].astype(np.float64) for name in "qkv")
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = np.einsum("ihd,jhd->hij", q, k) * scale
    scores = np.where(np.tri(len(q), dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    out: NDArray[np.float64] = np.einsum("hij,jhd->ihd", weights / weights.sum(axis=-1, keepdims=True), v)
    return out
