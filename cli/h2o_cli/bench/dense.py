"""h2o-bench dense: speed and loss of all kinds of products with a bundle's integer weights on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from h2o_cli import usage
from h2o_cli.bundle_argument import as_bundle, bundle_argument
from h2o_cli.common import (
    json_option,
    print_json,
    show,
    start_logging,
    threads_option,
    verbose_option,
)
from h2o_cli.eval.texts import prompt_ids
from h2o_runtime import Full, Generator
from h2o_runtime.backends.onnxruntime import OnnxRuntimeBackend
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.bundles.manifest import GraphSpec
from h2o_runtime.dense_graphs.choice import DenseProducts, DenseTimes, Measured, choice_target, keep, machine
from h2o_runtime.dense_graphs.native import can_widen, is_fast
from h2o_runtime.errors import ConfigError
from h2o_runtime.process import default_threads

TEXT_TOKENS = 512
_INTEGERS, _WIDENED = DenseProducts("native"), DenseProducts("native", "bfloat16")
SEEN = 64  # tokens before the ones whose log-probabilities count


@click.command(cls=usage.Command)
@bundle_argument
@click.option(
    "--length", type=click.IntRange(min=2), default=1024, show_default=True, help="Tokens of a long call."
)
@click.option(
    "--repetitions", type=click.IntRange(min=1), default=7, show_default=True, help="Measured rounds."
)
@threads_option
@json_option
@verbose_option
def dense(
    bundle: str, length: int, repetitions: int, threads: int | None, as_json: bool, verbose: int
) -> None:
    """Find the fastest products with integer weights on this machine; later commands use them on the CPU."""
    start_logging(verbose)
    folder = as_bundle(bundle)
    opened = Bundle.open(folder)
    if not opened.manifest.model.quantized:
        raise ConfigError(
            f"{folder}: its weights are floats: export with --weights int8 or int4 to measure dense forms"
        )
    cores = threads or default_threads()
    choice_target(opened.manifest, cores)
    speeds = _speeds(opened, cores, length, repetitions)
    losses = _losses(folder, opened, cores)
    times = tuple(
        DenseTimes(
            form=kind.form,
            precision=kind.precision,
            row_s=speeds[kind][0],
            many_s=speeds[kind][1] / length,
            loss=losses[kind],
        )
        for kind in _kinds()
    )
    measured = Measured(machine=machine(cores), times=times)
    path = keep(measured, opened.manifest, cores)
    if as_json:
        best = measured.best()._asdict()
        print_json({**measured.model_dump(), "best": best, "file": str(path)})
    else:
        _show(measured, path)


def _kinds() -> Iterator[DenseProducts]:
    """All for which this CPU has the instructions."""
    yield DenseProducts("exact")
    if is_fast():
        yield _INTEGERS
    if can_widen():
        yield _WIDENED
    yield DenseProducts("blocks")


def _speeds(
    bundle: Bundle, threads: int, rows: int, repetitions: int
) -> dict[DenseProducts, tuple[float, float]]:
    """Seconds of all dense graphs for one row with the head, and for many rows without; the best of
    interleaved rounds.

    All middle layers are equal, so one of them represents the rest. One row has integer products where a prompt's
    are in bfloat16.
    """
    graphs = bundle.manifest.dense_graphs()
    first, middle, last = graphs[0], graphs[len(graphs) // 2], graphs[-1]
    alike = len(graphs) - 2
    backends: dict[DenseProducts, OnnxRuntimeBackend] = {}
    for kind in _kinds():
        backends[kind] = OnnxRuntimeBackend(
            bundle, threads, dense_form=kind.form, dense_precision=kind.precision
        )
        backends[kind].activate(only=[first.name, middle.name, last.name])
    best: dict[tuple[DenseProducts, str, int], float] = {}
    feeds = {
        (kind, graph.name, n): _feed(graph, n, backend.model.dtype)
        for kind, backend in backends.items()
        for graph in (first, middle, last)
        for n in (1, rows)
    }
    for _ in range(repetitions):
        for graph in {graph.name: graph for graph in (first, middle, last)}.values():
            for n in (1, rows) if graph is not last else (1,):
                for kind, backend in backends.items():
                    inputs, outputs = feeds[kind, graph.name, n]
                    spent = _timed(lambda: backend.infer(graph.name, inputs, outputs))  # noqa: B023 (called here)
                    key = (kind, graph.name, n)
                    best[key] = min(best.get(key, spent), spent)

    def row_s(kind: DenseProducts) -> float:
        return best[kind, first.name, 1] + alike * best[kind, middle.name, 1] + best[kind, last.name, 1]

    return {
        kind: (
            row_s(_INTEGERS if kind == _WIDENED else kind),
            best[kind, first.name, rows] + alike * best.get((kind, middle.name, rows), 0.0),
        )
        for kind in backends
    }


def _feed(graph: GraphSpec, n: int, computed: str) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """computed: the dtype of activations, where the bundle has float16."""
    draw = np.random.default_rng(0)

    def array(shape: tuple[int | str, ...], dtype: str) -> NDArray[Any]:
        sizes = tuple(n if isinstance(size, str) else size for size in shape)
        if dtype == "int64":
            return np.arange(np.prod(sizes), dtype=np.int64).reshape(sizes) % 64
        return draw.standard_normal(sizes).astype(computed if dtype == "float16" else dtype)

    inputs = {spec.name: array(spec.shape, spec.dtype) for spec in graph.inputs}
    return inputs, {spec.name: array(spec.shape, spec.dtype) for spec in graph.outputs}


def _timed(work: Callable[[], None]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _losses(folder: Path, bundle: Bundle, threads: int) -> dict[DenseProducts, float]:
    """The loss of log-probability per token of each kind against "exact", on average.

    Half the mean square of the differences estimates it: this is the loss on text that the model would write
    itself. The mean of the differences would be noise over so few tokens.
    """
    ids = prompt_ids(bundle, None, min(TEXT_TOKENS, bundle.manifest.model.max_position_embeddings))
    found = {}
    for kind in _kinds():
        with Generator.load(
            folder,
            context=len(ids),
            threads=threads,
            device="cpu",
            dense_form=kind.form,
            dense_precision=kind.precision,
        ) as generator:
            logprobs = generator.logprobs(ids, Full()).astype(np.float64)
            found[kind] = logprobs[min(SEEN, len(ids) // 2) :]
    exact = found[DenseProducts("exact")]
    return {kind: float(np.square(exact - mine).mean() / 2) for kind, mine in found.items()}


def _show(measured: Measured, path: Path) -> None:
    table = Table("form", "precision", "one token", "a token of many", "loss of log-probability", "")
    for times in measured.times:
        chosen = "chosen" if times.products == measured.best() else ""
        table.add_row(
            times.form,
            times.precision,
            f"{1e3 * times.row_s:.2f} ms",
            f"{1e3 * times.many_s:.3f} ms",
            f"{times.loss:+.4f}",
            chosen,
        )
    show(table, f"kept in {path}")
