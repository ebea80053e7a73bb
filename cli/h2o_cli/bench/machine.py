"""The machine: what a reader of the results needs to know, and its peak rates, measured in the same run. With the
work that every implementation must do (`h2o_cli.arithmetic`) they give the floor.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from h2o_runtime.backends.select import make_device
from h2o_runtime.errors import BackendError
from h2o_runtime.ort.session import BoundSession, open_session
from h2o_runtime.process import default_threads

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
        session = open_session(_matrix_product("float32"), threads)
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


def measure_gpu_rates(dtype: str, repetitions: int = 30) -> dict[str, Any]:
    """Matrix products with ONNX Runtime, if it can use the GPU, and copies within GPU memory.

    dtype: of the products, float32 or float16, which is ten times as fast on some GPUs
    """
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
        session = BoundSession(open_session(_matrix_product(dtype), 1, device=device), device.memory)
        a, b, c = (device.zeros((GPU_SIDE, GPU_SIDE), dtype) for _ in range(3))

        def product() -> None:
            session.run({"a": a, "b": b}, {"c": c})
            device.synchronize()

        rates |= {"flops": 2 * GPU_SIDE**3 / _best(product, repetitions), "flops_by": f"onnxruntime, {dtype}"}
    return rates


def better(first: MachineRates, second: MachineRates) -> MachineRates:
    """The faster of two measurements: a busy moment does not lower the floor."""
    compute = max(first, second, key=lambda rates: rates.flops or 0.0)
    memory = max(first, second, key=lambda rates: rates.bandwidth)
    return MachineRates(compute.flops, compute.flops_by, memory.bandwidth, memory.bandwidth_by, first.gpu)


def _best(work: Callable[[], object], repetitions: int) -> float:
    work()
    times = []
    for _ in range(repetitions):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times)


def _matrix_product(dtype: str) -> bytes:
    """A model of one matrix product. Raises BackendError without the package onnx."""
    try:
        from onnx import TensorProto, helper
    except ImportError as error:
        raise BackendError(f"the package onnx is missing ({error})") from None
    element = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}[dtype]
    names = [helper.make_tensor_value_info(name, element, [None, None]) for name in "abc"]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["a", "b"], ["c"])], "product", names[:2], names[2:]
    )
    opsets = [helper.make_opsetid("", 20)]
    model: bytes = helper.make_model(graph, ir_version=10, opset_imports=opsets).SerializeToString()
    return model


def describe() -> dict[str, Any]:
    """Processor, cores, memory, system and load."""
    return {
        "cpu": _cpu_name(),
        "architecture": platform.machine(),
        "cores": default_threads(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "vector": _vector_extensions(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_average": os.getloadavg()[0],
    }


def _cpu_info(key: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")


def _cpu_name() -> str:
    name = _cpu_info("model name") or platform.processor() or "unknown"
    family, model = _cpu_info("cpu family"), _cpu_info("model\t")
    return f"{name} (family {family}, model {model})" if family else name


def _vector_extensions() -> list[str]:
    flags = set((_cpu_info("flags") or _cpu_info("Features")).split())
    x86 = ("avx2", "fma", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16")
    return [name for name in (*x86, "asimd", "asimdhp", "sve") if name in flags]
