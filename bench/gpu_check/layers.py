"""Prefill policies on random q, k, v, the GPU against the CPU: python -m bench.gpu_check.layers

No dense graph is in between, and a head has 64 or 128 elements.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from bench.gpu_check.rows import Row, tell

from h2o_cli.bench.systems.attention import PolicyOnRows
from h2o_runtime.attention.provider import AttentionProvider
from h2o_runtime.caches.reuse import Provenance
from h2o_runtime.devices import Device, HostDevice
from h2o_runtime.devices.cuda import CudaDevice
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.policies.prefill import ColumnSum, Full, PrefillPolicy, Query, Window
from h2o_runtime.providers.cuda import NativeCudaProvider
from h2o_runtime.providers.native import NativeCpuProvider
from h2o_runtime.schedule import Span

DType: TypeAlias = Literal["float32", "float16"]
HEADS, HEAD_SIZES = (32, 8), (64, 128)  # query heads, and key/value heads
CHUNK = 1024
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
    """o [n, Hq, d], memory sets [boundaries, Hs, M] and who sees each, milliseconds."""

    o: np.ndarray
    sets: np.ndarray
    seen_by: tuple[Span, ...]
    ms: float  # of the layer


def cases() -> list[Case]:
    """Several batches and a rest."""
    part = CHUNK // 4
    h2o: dict[str, Any] = {"chunk_size": CHUNK, "batch_size": 4 * CHUNK, "local": part, "heavy": part}
    policies: dict[str, PrefillPolicy[Any]] = {
        "full": Full(batch_size=4 * CHUNK),
        "colsum": ColumnSum(**h2o, dense_tail=part // 2),
        "colsum, query heads": ColumnSum(**h2o, heads="query"),
        "query": Query(**h2o, tile=CHUNK // 8, candidates=CHUNK),
        "window": Window(**h2o, window=min(part, 64)),
    }
    return [
        Case(name, policy, dtype, d, 17 * part)
        for d in HEAD_SIZES
        for dtype in OUTPUT
        for name, policy in policies.items()
    ]


def model_of(case: Case) -> ModelSpec:
    """One layer."""
    query_heads, kv_heads = HEADS
    return ModelSpec(
        family="llama",
        hidden_size=query_heads * case.head_size,
        layers=1,
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


def attend(case: Case, device: Device, provider: AttentionProvider) -> Result:
    """A second run's result: in the first, workspaces grow and kernels are loaded."""
    n, policy, random = case.n, case.policy, np.random.default_rng(9)
    query_heads, kv_heads = HEADS
    drawn = [
        random.standard_normal((n, heads, case.head_size), np.float32).astype(case.dtype)
        for heads in (query_heads, kv_heads, kv_heads)
    ]
    rows = PolicyOnRows(policy, model_of(case), device, provider, drawn)
    for _ in range(2):
        begin = time.perf_counter()
        rows.run(n)
        ms = 1e3 * (time.perf_counter() - begin)
    report = policy.report(rows.state, Provenance.fresh(policy, n))
    sets = report.boundaries[:, 0] if report.boundaries.size else np.zeros((0, 1, 1), np.int32)
    return Result(np.array(device.download(rows.out)), sets, report.seen_by, ms)


def sets_differ(got: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """How many rows of each reference set the other one lacks [...], for int32 [..., M] in any order."""
    pairs = zip(got.reshape(-1, got.shape[-1]), truth.reshape(-1, truth.shape[-1]), strict=True)
    return np.array([len(np.setdiff1d(b, a)) for a, b in pairs], np.int64).reshape(truth.shape[:-1])


def compare(case: Case, gpu: CudaDevice) -> Row:
    """A policy's output and memory sets on the GPU and on the CPU."""
    got = attend(case, gpu, NativeCudaProvider(gpu))
    truth = attend(case, HostDevice(), NativeCpuProvider())
    lacking = sets_differ(got.sets, truth.sets)
    alike = np.ones(case.n, np.bool_)
    others = [bool(each.any()) for each in lacking]
    for rows, other in zip(truth.seen_by, others, strict=False):  # the last set may have no readers
        if other:  # outputs of its readers differ, whatever computed them
            alike[rows.start : rows.stop] = False
    exact = truth.o[alike].astype(np.float64)
    error = float(np.linalg.norm(got.o[alike] - exact) / np.linalg.norm(exact))
    differ = float(lacking.sum() / max(truth.sets.size, 1))
    return {
        "policy": case.name,
        "dtype": case.dtype,
        "head_size": case.head_size,
        "n": case.n,
        "error": error,
        "sets_differ": differ,
        "rows_compared": float(alike.mean()),
        "ms": got.ms,
        "same": error <= OUTPUT[case.dtype] and differ <= SETS[case.dtype],
    }


def checks() -> Iterator[Row]:
    gpu = CudaDevice()
    for case in cases():
        yield compare(case, gpu)


if __name__ == "__main__":
    sys.exit(tell(checks))
