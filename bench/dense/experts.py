"""Compares a layer's mixture of experts with the products of its chosen experts alone.

    python -m bench.dense.experts BUNDLE... [--rows 1 8 512 1024 4096] [--threads 2] [--rounds 9]

Both are cut from one dense graph of the bundle, and multiply with our own products. The mixture is everything from
the router's input to the sum of the chosen experts. The products get rows that are already sorted: one MLP for each
expert that a row chose. Rounds are interleaved; prints medians, and the median of the ratios within rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.dense_graphs.fusion import fuse
from h2o_runtime.dense_graphs.graph_view import keep_needed
from h2o_runtime.dense_graphs.native import multiply_natively, operators
from h2o_runtime.model_spec import ExpertsSpec
from h2o_runtime.ort.session import open_session

Arrays = dict[str, NDArray[Any]]
CHOSEN, SORTED, MIXED = "experts/chosen", "experts/sorted_rows", "mlp/ReduceSum"


@dataclass(frozen=True)
class Layer:
    """One dense graph with experts, and the names of its tensors."""

    path: Path
    experts: ExpertsSpec
    x: str  # what the router and the experts read
    chosen: str
    mixed: str

    @classmethod
    def of(cls, bundle: Bundle) -> Layer:
        experts = bundle.manifest.model.experts
        for spec in bundle.manifest.dense_graphs():
            path = bundle.path(spec)
            nodes = {node.output[0]: node for node in onnx.load(path, load_external_data=False).graph.node}
            found = {end: name for end in (CHOSEN, SORTED, MIXED) for name in nodes if name.endswith(end)}
            if experts is not None and len(found) == 3:
                return cls(path, experts, nodes[found[SORTED]].input[0], found[CHOSEN], found[MIXED])
        raise SystemExit(f"{bundle.folder}: no layer of it has experts")

    @property
    def flop(self) -> float:
        """Of a row's products with its chosen experts."""
        return 2.0 * self.experts.matrices * self.hidden * self.experts.size * self.experts.chosen

    @property
    def hidden(self) -> int:
        graph = onnx.load(self.path, load_external_data=False).graph
        (residual,) = (value for value in graph.output if value.name == "residual_out")
        return int(residual.type.tensor_type.shape.dim[-1].dim_value)

    def rows_of(self, expert: int) -> str:
        return self.chosen.replace("/chosen", f"/{expert}/rows")

    def said_by(self, expert: int) -> str:
        return self.chosen.replace("/chosen", f"/{expert}/down_proj/Gemm")

    def session(self, given: Sequence[str], results: Sequence[str], threads: int) -> Any:
        """The part of the graph from some float tensors to others, as our backend would load it."""
        model = onnx.load(self.path, load_external_data=False)
        graph = model.graph
        del graph.input[:], graph.output[:]
        kinds = {name: TensorProto.INT64 if name == self.chosen else TensorProto.FLOAT for name in results}
        graph.input.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in given)
        graph.output.extend(helper.make_tensor_value_info(name, kinds[name], None) for name in results)
        left = [node for node in graph.node if not set(node.output) & set(given)]
        del graph.node[:]
        graph.node.extend(left)
        keep_needed(graph)
        model_output, arrays = multiply_natively(model, self.path, threads)
        return open_session(
            fuse(model_output).SerializeToString(),
            threads,
            beside=self.path.parent,
            operators=operators(),
            weights=arrays,
        )


@dataclass(frozen=True)
class Work:
    """Rows to read: `sorted_rows` are those of each expert that has any."""

    x: NDArray[np.float32]
    sorted_rows: dict[int, NDArray[np.float32]]

    @classmethod
    def draw(cls, rows: int, hidden: int, choose: Callable[[NDArray[np.float32]], NDArray[np.int64]]) -> Work:
        x = np.random.default_rng(rows).standard_normal((rows, hidden)).astype(np.float32)
        chosen = choose(x).reshape(rows, -1)
        return cls(x, {int(e): x[(chosen == e).any(axis=1)] for e in np.unique(chosen)})


def measure(layer: Layer, counts: Sequence[int], threads: int, rounds: int) -> None:
    mixture = layer.session([layer.x], [layer.mixed], threads)
    router = layer.session([layer.x], [layer.chosen], threads)
    for rows in counts:
        work = Work.draw(rows, layer.hidden, lambda x: router.run(None, {layer.x: x})[0])
        given = {layer.rows_of(e): rows for e, rows in work.sorted_rows.items()}
        alone = layer.session(list(given), [layer.said_by(e) for e in work.sorted_rows], threads)
        runs: dict[str, Callable[[], Any]] = {
            "mixture": partial(mixture.run, None, {layer.x: work.x}),
            "products": partial(alone.run, None, given),
        }
        seconds = timed(runs, rounds if rows > 100 else 20 * rounds)
        ratios = [a / b for a, b in zip(seconds["mixture"], seconds["products"], strict=True)]
        told = [f"{name} {statistics.median(times) * 1e3:8.3f} ms" for name, times in seconds.items()]
        rate = rows * layer.flop / statistics.median(seconds["products"]) * 1e-9
        ratio = statistics.median(ratios)
        print(
            f"  {rows:5} rows, {len(given):3} experts: {', '.join(told)} ({rate:.0f} GFLOP/s), ratio {ratio:.2f}",
            flush=True,
        )


def timed(runs: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    for _ in range(rounds):
        for name, run in runs.items():
            begin = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - begin)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundles", type=Path, nargs="+")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 512, 1024, 4096])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    for path in options.bundles:
        layer = Layer.of(Bundle.open(path))
        sizes = layer.experts
        print(f"{path.name}: {sizes.chosen} of {sizes.count} experts, {layer.hidden} x {sizes.size}")
        measure(layer, options.rows, options.threads, options.rounds)


if __name__ == "__main__":
    main()
