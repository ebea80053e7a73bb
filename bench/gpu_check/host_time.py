"""Time that the host needs to enqueue a layer of a prefill, on a GPU that does nothing.

    python -m bench.gpu_check.host_time [ROWS …]

The runtime reads prompts of so many tokens, by default 4,096, on the emulated CUDA runtime, whose launches and
copies return at once (H2O_EMULATION_IDLE). ONNX Runtime binds inputs and outputs of dense graphs, without a run.
A real launch or event costs the host a few µs more: the last column counts them. Each prompt has another length
than the one before. Times are processor time, because other processes may run beside: the median and the least of
many prompts, in µs a layer.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from bench.gpu_check.policies import Case, model_of
from bench.gpu_check.prefill_times import HEADS, POLICIES
from onnx import TensorProto, helper
from tests import emulation

from h2o_runtime.backend import Tensors
from h2o_runtime.caches import Contiguous
from h2o_runtime.caches.reuse import Prefix
from h2o_runtime.devices.cuda import CudaDevice
from h2o_runtime.execution.forward import PromptRun
from h2o_runtime.execution.recorded import RecordedForward
from h2o_runtime.execution.watch import Watch
from h2o_runtime.layer_spec import rotation_names
from h2o_runtime.layers.activations import Activations
from h2o_runtime.layers.live import Layers
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.ort.session import BoundSession, open_session
from h2o_runtime.policies.decode import FullDecode
from h2o_runtime.policies.prefill import PrefillPolicy
from h2o_runtime.providers.cuda import NativeCudaProvider
from h2o_runtime.sessions.session import Session
from h2o_runtime.sessions.spec import SessionSpec

HEAD_SIZE, LAYERS, REPEATS = 64, 16, 40
GRAPHS = [f"dense_{layer:02}" for layer in range(LAYERS)]
MULTIPROCESSORS = "132"  # of an H200


class BindsOnly:
    """A session that binds inputs and outputs, and does not run."""

    def __init__(self, session: Any) -> None:
        self.io_binding = session.io_binding

    def run_with_iobinding(self, binding: Any, options: Any) -> None:
        pass


def dense_graph(model: ModelSpec, first: bool) -> bytes:
    """A graph with the inputs and outputs of a layer's dense graph."""
    half, d = TensorProto.FLOAT16, model.head_size
    residual = ["n", model.hidden_size]
    angles = {name: (TensorProto.FLOAT, ["n", d // 2]) for name in rotation_names(0)}
    inputs: dict[str, Any] = {name: (TensorProto.INT64, ["n"]) for name in ("tokens", "positions")}
    outputs: dict[str, Any] = {"residual_out": (half, residual), "q": (half, ["n", model.query_heads, d])}
    outputs |= {name: (half, ["n", model.kv_heads, d]) for name in ("k", "v")}
    if first:
        outputs |= angles
    else:
        inputs = {"attention": (half, ["n", model.query_heads, d]), "residual": (half, residual)} | angles
    source = next(iter(inputs))
    nodes = [helper.make_node("Cast", [source], [name], to=kind) for name, (kind, _) in outputs.items()]
    described = (
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in given.items()]
        for given in (inputs, outputs)
    )
    graph = helper.make_graph(nodes, "dense", next(described), next(described))
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    serialized: bytes = made.SerializeToString()
    return serialized


class BindingBackend:
    """The dense graphs of a model whose layers are alike, bound and not run."""

    name, most_rows, step_rows = "binding", sys.maxsize, 1
    native_products, recordable, dense_precision = False, False, None

    def __init__(self, model: ModelSpec) -> None:
        self.model = model
        first, other = (BindsOnly(open_session(dense_graph(model, one), threads=1)) for one in (True, False))
        self._sessions = {name: BoundSession(other) for name in GRAPHS} | {GRAPHS[0]: BoundSession(first)}

    def infer(self, graph: str, inputs: Tensors, outputs: Tensors) -> None:
        self._sessions[graph].run(inputs, outputs)


@dataclass(frozen=True)
class Enqueued:
    """Of a layer: processor time in µs, and what was enqueued, launches, copies, events and waits alike."""

    median: float
    least: float
    operations: float


class Runtime:
    """A model with room for `capacity` tokens, without weights."""

    def __init__(self, capacity: int, operations: Callable[[], int]) -> None:
        case = Case("", POLICIES["full"], "float16", HEAD_SIZE, capacity)
        model = model_of(case, *HEADS).model_copy(update={"layers": LAYERS})
        device, backend = CudaDevice(), BindingBackend(model)
        self._operations = operations
        layers = Layers(model, lambda: NativeCudaProvider(device))
        buffers = Activations(model, capacity, device)
        graphs = [SimpleNamespace(name=name) for name in (*GRAPHS, "head")]
        bundle: Any = SimpleNamespace(model=model, dense_graphs=lambda: graphs)
        of_layers = layers.load(backend, buffers, capacity, device, Contiguous())  # type: ignore[arg-type]
        self._forward = RecordedForward(bundle, backend, of_layers, FullDecode(), buffers, device)  # type: ignore[arg-type]
        self._spec = SessionSpec(bundle, capacity, device, layers)

    def enqueue(self, policy: PrefillPolicy[Any], n: int) -> Enqueued:
        session = Session(self._spec)
        session.prepare(policy)
        prompts = [
            PromptRun(
                np.zeros(rows, np.int64),
                Prefix.NONE,
                policy,
                session,
                Watch().checkpoint(rows),
                needed=rows - 1,
            )
            for rows in (n, n - 1)
        ]
        self._forward.prefill(prompts[0])  # workspaces grow in this run
        before, times = self._operations(), []
        for i in range(REPEATS):
            begin = time.process_time()
            self._forward.prefill(prompts[i % 2])
            times.append(1e6 * (time.process_time() - begin) / LAYERS)
        operations = (self._operations() - before) / REPEATS / LAYERS
        return Enqueued(statistics.median(times), min(times), operations)


def measured(lengths: list[int]) -> Iterator[tuple[int, str, Enqueued]]:
    os.environ |= {"H2O_EMULATION_IDLE": "1", "H2O_EMULATION_MULTIPROCESSORS": MULTIPROCESSORS}
    count = ctypes.CDLL(emulation.install().__file__).emulated_operations
    count.restype = ctypes.c_size_t
    runtime = Runtime(max(lengths), count)
    for n in lengths:
        for name, policy in POLICIES.items():
            yield n, name, runtime.enqueue(policy, n)


def main() -> None:
    lengths = [int(number) for number in sys.argv[1:]] or [4096]
    for n, name, one in measured(lengths):
        print(
            f"{n:7,} {name:8} {one.median:6.1f} {one.least:6.1f} µs a layer, {one.operations:5.1f} operations"
        )


if __name__ == "__main__":
    main()
