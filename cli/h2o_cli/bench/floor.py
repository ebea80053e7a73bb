"""The floor: the machine's peak rates, measured in the same run, and the work that every implementation must
do.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from h2o_runtime.backends.select_device import make_device
from h2o_runtime.errors import BackendError
from h2o_runtime.layer_spec import LayerSpec
from h2o_runtime.layers import LAYERS
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.ort.session import BoundSession, open_session
from h2o_runtime.policies.decode import DecodePolicy, FullDecode
from h2o_runtime.policies.prefill import PrefillPolicy

SIDE = 1024  # size of the multiplied square matrices: short runs are disturbed less
GPU_SIDE = 8192
FLOATS = 1 << 25  # 128 MiB, more than the caches


@dataclass(frozen=True)
class MachineRates:
    """The best measured rates per second: floating-point operations (None if unknown), and bytes."""

    flops: float | None
    flops_by: str
    bandwidth: float
    bandwidth_by: str
    gpu: str | None = None  # the device's name, if it was measured

    def in_words(self) -> str:
        compute = f"{self.flops / 1e9:,.0f} GFLOP/s ({self.flops_by}), " if self.flops else ""
        where = f" on {self.gpu}" if self.gpu else ""
        return f"{compute}{self.bandwidth / 1e9:,.1f} GB/s ({self.bandwidth_by}){where}"


def measure_rates(threads: int, repetitions: int = 30) -> dict[str, Any]:
    """Float32 matrix products and memory reads, each in several variants; the fastest is the machine's
    rate.
    """
    draw = np.random.default_rng(0)
    a, b = (draw.random((SIDE, SIDE), np.float32) for _ in range(2))
    out = np.empty_like(a)
    products: dict[str, Callable[[], object]] = {"numpy": lambda: np.matmul(a, b, out=out)}
    with suppress(BackendError):
        session = open_session(_matrix_product(), threads)
        products["onnxruntime"] = lambda: session.run(None, {"a": a, "b": b})
    rates = {name: 2 * SIDE**3 / _best(work, repetitions) for name, work in products.items()}
    flops_by = max(rates, key=rates.__getitem__)

    data = np.ones(FLOATS, np.float32)
    slices = np.array_split(data, threads)
    with ThreadPoolExecutor(threads) as pool:
        reads: dict[str, Callable[[], object]] = {
            "maximum": lambda: list(pool.map(np.max, slices)),
            "dot product": lambda: float(np.dot(data[: FLOATS // 2], data[FLOATS // 2 :])),
        }
        speeds = {name: data.nbytes / _best(work, repetitions) for name, work in reads.items()}
    bandwidth_by = max(speeds, key=speeds.__getitem__)
    return {
        "flops": rates[flops_by],
        "flops_by": flops_by,
        "bandwidth": speeds[bandwidth_by],
        "bandwidth_by": bandwidth_by,
    }


def measure_gpu_rates(repetitions: int = 30) -> dict[str, Any]:
    """Float32 matrix products with ONNX Runtime, if it can use the GPU, and copies within GPU memory."""
    device: Any = make_device("cuda", "onnxruntime")
    source, target = (device.zeros((FLOATS,), np.float32) for _ in range(2))

    def copy() -> None:
        device.copy(source, target)
        device.synchronize()

    rates: dict[str, Any] = {
        "flops": None,
        "flops_by": "",
        "bandwidth": 2 * source.nbytes / _best(copy, repetitions),
        "bandwidth_by": "device copy",
        "gpu": device.module.device_name(),
    }
    with suppress(BackendError):
        session = BoundSession(open_session(_matrix_product(), 1, device=device), device.memory)
        a, b, c = (device.zeros((GPU_SIDE, GPU_SIDE), np.float32) for _ in range(3))

        def product() -> None:
            session.run({"a": a, "b": b}, {"c": c})
            device.synchronize()

        rates |= {"flops": 2 * GPU_SIDE**3 / _best(product, repetitions), "flops_by": "onnxruntime"}
    return rates


def better(first: MachineRates, second: MachineRates) -> MachineRates:
    """The faster of two measurements: a busy moment does not lower the floor."""
    compute = max(first, second, key=lambda rates: rates.flops or 0.0)
    memory = max(first, second, key=lambda rates: rates.bandwidth)
    return MachineRates(compute.flops, compute.flops_by, memory.bandwidth, memory.bandwidth_by, first.gpu)


def dense_flop(model: ModelSpec, tokens: int) -> int:
    """Every matrix for every token; the work after the last layer's attention, and the head, for the last
    token only.
    """
    hidden, specs = model.hidden_size, model.each_layer
    before = sum(LAYERS[spec.kind]().multiplications(model, spec) for spec in specs)
    after = [
        hidden * spec.out_size * spec.query_heads + _feed_forward(model, i) for i, spec in enumerate(specs)
    ]
    rows = sum(after[:-1]) * tokens + after[-1]
    return 2 * (before * tokens + rows + hidden * model.vocab_size)


def _feed_forward(model: ModelSpec, layer: int) -> int:
    """Multiplications per token in a layer's MLP, or in its router and the chosen experts."""
    experts = model.experts
    if experts is None or layer < model.layers - experts.layers:
        return 3 * model.hidden_size * model.intermediate_size
    return model.hidden_size * (experts.count + 3 * (experts.chosen * experts.size + experts.shared_size))


def attention_flop(model: ModelSpec, policy: PrefillPolicy[Any], tokens: int) -> int:
    """Two dot products per pair of query and visible key, in every layer and query head."""
    *others, last = model.each_layer
    before = sum(_pair_flop(spec) * _layer_pairs(spec, policy, tokens) for spec in others)
    # In the last layer, only the last row's keys.
    pairs = min(last.window, tokens) if last.window else policy.last_layer_pairs(tokens)
    return before + _pair_flop(last) * int(pairs)


def layer_flop(model: ModelSpec, policy: PrefillPolicy[Any], tokens: int) -> int:
    """The same for the first layer, all of whose rows are needed."""
    return _pair_flop(model.layer(0)) * _layer_pairs(model.layer(0), policy, tokens)


def _pair_flop(spec: LayerSpec) -> int:
    """One dot product with a key and one added value, in every query head, at the sizes of the dense
    graphs.
    """
    return 2 * spec.query_heads * (spec.query_size + spec.out_size)


def _layer_pairs(spec: LayerSpec, policy: PrefillPolicy[Any], tokens: int) -> int:
    """The number of (query, key) pairs that a layer computes for a prompt: those of its window, or of the
    policy.
    """
    if not spec.window:
        return visible_pairs(policy, tokens)
    window = min(spec.window, tokens)
    return window * (window + 1) // 2 + (tokens - window) * window


def visible_pairs(policy: PrefillPolicy[Any], tokens: int) -> int:
    """The number of (query, key) pairs that the policy computes for a prompt, in a layer without a window."""
    return policy.visible_pairs(tokens)


def decode_bytes(model: ModelSpec, context: int, decoding: DecodePolicy[Any] | None = None) -> int:
    """Every weight once (of the embedding only what the head reads, of experts only the chosen ones), and the
    rows of the cache that the policy reads.
    """
    item = np.dtype(model.dtype).itemsize
    unread = 0 if model.tied else model.vocab_size * model.hidden_size * item
    if not model.tied and model.weights:
        unread = model.weights.table_bytes
    unread += _unchosen_bytes(model) + (model.weights.layer_tables_bytes if model.weights else 0)
    windows = sum(min(spec.window, context) * spec.row.elements * item for spec in model.each_layer)
    others = model.under_policies
    read = (decoding or FullDecode()).step_bytes(others, context) if others.layers else 0
    return model.weight_bytes - unread + windows + read


def _unchosen_bytes(model: ModelSpec) -> int:
    """Weights of the experts that one token does not use."""
    experts, weights = model.experts, model.weights
    if experts is None or weights is None:
        return 0
    left = experts.layers * (experts.count - experts.chosen) * 3 * experts.size * model.hidden_size
    return left * weights.projection_bytes // weights.projection_elements


def _best(work: Callable[[], object], repetitions: int) -> float:
    work()
    times = []
    for _ in range(repetitions):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times)


def _matrix_product() -> bytes:
    """A model of one matrix product. Raises BackendError without the package onnx."""
    try:
        from onnx import TensorProto, helper
    except ImportError as error:
        raise BackendError(f"the package onnx is missing ({error})") from None
    names = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, None]) for name in "abc"]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["a", "b"], ["c"])], "product", names[:2], names[2:]
    )
    opsets = [helper.make_opsetid("", 20)]
    model: bytes = helper.make_model(graph, ir_version=10, opset_imports=opsets).SerializeToString()
    return model
