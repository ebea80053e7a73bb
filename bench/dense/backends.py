"""Compares one layer's dense graph on OpenVINO and on ONNX Runtime, loaded as our backend does.

    pip install openvino
    python -m bench.dense.backends BUNDLE... [--rows 1 1024] [--threads 2] [--rounds 15]

Rounds are interleaved; prints medians. Inputs are random; outputs are compared with the dense form `exact`.
OpenVINO runs twice: with float activations and, if weights are integers, with activations in integer blocks
of 32.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import inliner

from h2o_runtime.backends.onnxruntime import OnnxRuntimeBackend
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.bundles.manifest import GraphSpec, TensorSpec
from h2o_runtime.names import DenseForm

Arrays = dict[str, NDArray[Any]]


def inputs_of(graph: GraphSpec, rows: int) -> Arrays:
    draw = np.random.default_rng(0)
    return {
        tensor.name: draw.standard_normal(sizes(tensor, rows)).astype(np.float32) for tensor in graph.inputs
    }


def outputs_of(graph: GraphSpec, rows: int) -> Arrays:
    return {tensor.name: np.empty(sizes(tensor, rows), np.float32) for tensor in graph.outputs}


def sizes(tensor: TensorSpec, rows: int) -> list[int]:
    return [size if isinstance(size, int) else rows for size in tensor.shape]


def ours(bundle: Bundle, graph: GraphSpec, form: DenseForm, threads: int) -> Callable[[Arrays], Arrays]:
    backend = OnnxRuntimeBackend(bundle, threads, dense_form=form)
    backend.activate([graph.name])

    def run(inputs: Arrays) -> Arrays:
        outputs = outputs_of(graph, len(next(iter(inputs.values()))))
        backend.infer(graph.name, inputs, outputs)
        return outputs

    return run


def openvinos(path: Path, threads: int, settings: Mapping[str, Any]) -> Callable[[Arrays], Arrays]:
    try:
        openvino: Any = importlib.import_module("openvino")
    except ImportError as error:
        raise SystemExit(f"not installed ({error}): pip install openvino") from None
    core = openvino.Core()
    graph = inliner.inline_local_functions(onnx.load(str(path)))  # OpenVINO does not know our functions
    compiled = core.compile_model(
        core.read_model(graph.SerializeToString()),
        "CPU",
        {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", **settings},
    )
    request = compiled.create_infer_request()
    names = [output.get_any_name() for output in compiled.outputs]

    def run(inputs: Arrays) -> Arrays:
        request.infer(inputs, share_inputs=True)
        return {name: request.get_tensor(name).data for name in names}

    return run


def measure(path: Path, threads: int, rows: int, rounds: int) -> None:
    bundle = Bundle.open(path)
    graph = bundle.manifest.dense_graphs()[1]
    forms: tuple[DenseForm, ...] = (
        ("exact", "native", "blocks") if bundle.manifest.model.quantized else ("exact",)
    )
    runs = {f"ONNX Runtime {form}": ours(bundle, graph, form, threads) for form in forms}
    for name, size in (("floats", 0), ("integers", 32)):
        settings = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": size}
        runs[f"OpenVINO {name}"] = openvinos(bundle.path(graph), threads, settings)
    inputs = inputs_of(graph, rows)
    expected = runs["ONNX Runtime exact"](inputs)["residual_out"].copy()
    found = {name: np.array(run(inputs)["residual_out"]) for name, run in runs.items()}
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds if rows > 1 else 20 * rounds):
        for name, run in runs.items():
            begin = time.perf_counter()
            run(inputs)
            seconds[name].append(time.perf_counter() - begin)
    print(f"{path.name}, {rows} rows, {threads} threads: milliseconds, relative error")
    for name in runs:
        error = np.linalg.norm(found[name] - expected) / np.linalg.norm(expected)
        print(f"  {name:22} {statistics.median(seconds[name]) * 1e3:8.3f}  {error:.1e}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundles", type=Path, nargs="+")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 1024])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    for bundle in options.bundles:
        for rows in options.rows:
            measure(bundle, options.threads, rows, options.rounds)


if __name__ == "__main__":
    main()
