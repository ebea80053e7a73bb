"""Prefill policies on random q, k, v: the GPU against the CPU, with no dense graph in between.

    python -m bench.gpu_check.policies [ROWS]

Compares outputs and memory sets, and measures the host time for enqueueing a chunk's work. Exit code 0: all
agree; 1: something differs; 77: no CUDA kernels or no GPU. One row per case is appended to the file ROWS.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from bench.gpu_check.report import append
from bench.gpu_check.steps import NOT_HERE

from h2o_plugins import NativeKernelsMissing
from h2o_runtime.attention.base import AttentionProvider
from h2o_runtime.caches import Contiguous, Rows
from h2o_runtime.caches.reuse import Prefix, Provenance
from h2o_runtime.devices import Device, Flow, HostDevice
from h2o_runtime.devices.cuda import CudaDevice
from h2o_runtime.devices.host import HostFlow
from h2o_runtime.errors import H2OError
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.policies.prefill import (
    ColumnSum,
    Full,
    LayerCall,
    PrefillPolicy,
    PromptCall,
    Query,
    Window,
)
from h2o_runtime.providers.cuda import NativeCudaProvider
from h2o_runtime.providers.native import NativeCpuProvider
from h2o_runtime.schedule import Span

DType: TypeAlias = Literal["float32", "float16"]
LAYERS = 2
# Relative Frobenius error of the output, and the share of memory set rows that may differ. A sum in another
# order moves scores by less than most gaps between them, but near ties may be decided differently.
OUTPUT: dict[DType, float] = {"float32": 1e-5, "float16": 3e-3}
SETS = {"float32": 1e-3, "float16": 1e-2}


@dataclass(frozen=True)
class Case:
    name: str
    policy: PrefillPolicy[Any]
    dtype: DType
    head_size: int
    n: int


@dataclass(frozen=True)
class Result:
    """o [layers, n, Hq, d], memory sets [boundaries, layers, Hs, M] and who sees each, milliseconds."""

    o: np.ndarray
    sets: np.ndarray
    seen_by: tuple[Span, ...]
    host_ms: float  # to enqueue a layer
    total_ms: float  # until a layer is done


def cases(chunk: int, n: int, head_sizes: tuple[int, ...]) -> list[Case]:
    part = chunk // 4
    h2o: dict[str, Any] = {"chunk_size": chunk, "batch_size": 4 * chunk, "local": part, "heavy": part}
    policies: dict[str, PrefillPolicy[Any]] = {
        "full": Full(batch_size=4 * chunk),
        "colsum": ColumnSum(**h2o, dense_tail=part // 2),
        "colsum, query heads": ColumnSum(**h2o, heads="query"),
        "query": Query(**h2o, tile=chunk // 8, candidates=chunk),
        "window": Window(**h2o, window=min(part, 64)),
    }
    return [
        Case(name, policy, dtype, d, n)
        for d in head_sizes
        for dtype in OUTPUT
        for name, policy in policies.items()
    ]


def model_of(case: Case, query_heads: int, kv_heads: int) -> ModelSpec:
    return ModelSpec(
        family="llama",
        hidden_size=query_heads * case.head_size,
        layers=LAYERS,
        query_heads=query_heads,
        kv_heads=kv_heads,
        head_size=case.head_size,
        intermediate_size=1,
        vocab_size=1,
        max_position_embeddings=case.n,
        parameters=1,
        tied=True,
        scale=case.head_size**-0.5,
        dtype=case.dtype,
    )


class Drive:
    """One prompt's attention through all layers, as the layer loop drives it."""

    def __init__(self, case: Case, model: ModelSpec, device: Device, provider: AttentionProvider) -> None:
        self.case, self.device, self.provider = case, device, provider
        self.policy = case.policy
        provider.activate(model.attention)
        self.store = Contiguous().new_store(model, case.n, device, [provider] * model.layers)
        self.state: Any = self.policy.new_state(model, case.n, device)
        shape = (case.n, model.query_heads, case.head_size)
        self.q, self.o = (device.empty(shape, np.dtype(case.dtype)) for _ in range(2))

    def run(self, inputs: list[tuple[np.ndarray, ...]], flow: Flow | None = None) -> Result:
        n, device = self.case.n, self.device
        self.policy.start_prompt(PromptCall(n, 0, Prefix.NONE, np.zeros(0, np.bool_)), self.state)
        outputs, host, total = [], [], []
        for layer, (q, k, v) in enumerate(inputs):
            rows = Rows(0, n)
            with self.store.open(layer) as cache:
                target = cache.target(rows)
                for source, to in ((q, self.q), (k, target["k"]), (v, target["v"])):
                    device.upload(source, to)
                cache.commit(rows)
                call = LayerCall(
                    layer=layer,
                    q=self.q,
                    o=self.o,
                    k=target["k"],
                    v=target["v"],
                    kv=cache.view(n),
                    past=0,
                    prefix=Prefix.NONE,
                    provider=self.provider,
                    timer=HostDevice().stopwatch(()),
                    flow=flow or HostFlow(),  # one lane does all the work and waits for nothing
                    checkpoint=lambda done: None,
                )
                device.synchronize()
                begin = time.perf_counter()
                self.policy.attend(call, self.state)
                host.append(time.perf_counter() - begin)
                device.synchronize()
                total.append(time.perf_counter() - begin)
            outputs.append(np.array(device.download(self.o)))
        report = self.policy.report(self.state, Provenance.fresh(self.case.policy, n))
        return Result(np.stack(outputs), report.boundaries, report.seen_by, 1e3 * min(host), 1e3 * min(total))


def random_inputs(case: Case, query_heads: int, kv_heads: int) -> list[tuple[np.ndarray, ...]]:
    random = np.random.default_rng(9)
    heads = (query_heads, kv_heads, kv_heads)
    return [
        tuple(random.standard_normal((case.n, h, case.head_size)).astype(case.dtype) for h in heads)
        for _ in range(LAYERS)
    ]


def sets_differ(got: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """How many rows of each reference set the other one lacks [...], for int32 [..., M] in any order."""
    pairs = zip(got.reshape(-1, got.shape[-1]), truth.reshape(-1, truth.shape[-1]), strict=True)
    return np.array([len(np.setdiff1d(b, a)) for a, b in pairs], np.int64).reshape(truth.shape[:-1])


def same_sets(differ: np.ndarray, result: Result) -> np.ndarray:
    """Which rows saw equal sets, bool [layers, n]: outputs of others differ, whatever computed them.

    differ  [boundaries, layers, Hs], as `sets_differ` counts
    """
    same = np.ones(result.o.shape[:2], np.bool_)
    changed = np.asarray(differ.any(-1))  # [boundaries, layers]
    for rows, layers in zip(result.seen_by, changed, strict=False):  # the last set may have no readers
        same[layers, rows.start : rows.stop] = False
    return same


def compare(case: Case, gpu: CudaDevice, query_heads: int = 32, kv_heads: int = 8) -> dict[str, Any]:
    """One row of the report."""
    model = model_of(case, query_heads, kv_heads)
    inputs = random_inputs(case, query_heads, kv_heads)
    ours = Drive(case, model, gpu, NativeCudaProvider(gpu))
    ours.run(inputs)  # workspaces grow and kernels are loaded in this run
    got = ours.run(inputs)
    truth = Drive(case, model, HostDevice(), NativeCpuProvider()).run(inputs)
    lacking = sets_differ(got.sets, truth.sets) if truth.sets.size else np.zeros((0, 0, 0), np.int64)
    differ = float(lacking.sum() / truth.sets.size) if truth.sets.size else 0.0
    rows = same_sets(lacking, truth)
    exact = truth.o[rows].astype(np.float64)
    error = float(np.linalg.norm(got.o[rows] - exact) / np.linalg.norm(exact))
    chunks = case.policy.counts(case.n)["chunks"]
    return {
        "policy": case.name, "dtype": case.dtype, "head_size": case.head_size, "n": case.n, "error": error,
        "sets_differ": differ, "rows_compared": float(rows.mean()),
        "same": error <= OUTPUT[case.dtype] and differ <= SETS[case.dtype],
        "host_us_a_chunk": 1e3 * got.host_ms / chunks, "gpu_ms": got.total_ms, "cpu_ms": truth.total_ms,
    }  # fmt: skip


def main() -> int:
    rows = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    try:
        gpu = CudaDevice()
    except (NativeKernelsMissing, H2OError) as reason:
        print(reason)
        return NOT_HERE
    same = True
    for case in cases(chunk=1024, n=4 * 1024 + 300, head_sizes=(64, 128)):
        row = compare(case, gpu)
        print(row, flush=True)
        same &= row["same"]
        if rows:
            append(rows, "policies", row)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
