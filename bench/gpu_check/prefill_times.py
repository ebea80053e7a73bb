"""Times of a layer's prefill attention through the runtime, by policy: all rows of the prompt in one call.

    python -m bench.gpu_check.prefill_times ROWS

The settings are the defaults. Exit code 77: no CUDA kernels or no GPU. One row per time is appended to ROWS.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.gpu_check.policies import Case, Drive, model_of, random_inputs
from bench.gpu_check.report import append
from bench.gpu_check.steps import NOT_HERE

from h2o_plugins import NativeKernelsMissing
from h2o_runtime.devices.cuda import CudaDevice
from h2o_runtime.errors import H2OError
from h2o_runtime.policies.prefill import ColumnSum, Full, PrefillPolicy, Query, Window, policy_on_device
from h2o_runtime.providers.cuda import NativeCudaProvider

LENGTHS = (4096, 8192, 16384, 32768)
HEAD_SIZES = (64, 128)
HEADS = (32, 8)  # query heads, and key/value heads
POLICIES: dict[str, PrefillPolicy[Any]] = {
    "full": Full(),
    "default": policy_on_device(Query(), "cuda"),
    "h2o": Query(),
    "colsum": ColumnSum(),
    "window": Window(),
}


def times(gpu: CudaDevice) -> Iterator[dict[str, Any]]:
    """Milliseconds of a layer, the shortest of several."""
    for d in HEAD_SIZES:
        for n in LENGTHS:
            full = 0.0
            inputs = random_inputs(Case("", POLICIES["full"], "float16", d, n), *HEADS)
            for name, policy in POLICIES.items():
                case = Case(name, policy, "float16", d, n)
                drive = Drive(case, model_of(case, *HEADS), gpu, NativeCudaProvider(gpu))
                drive.run(inputs)  # workspaces grow and kernels are loaded in this run
                result = drive.run(inputs)
                full = result.total_ms if name == "full" else full
                yield {
                    "policy": name, "head_size": d, "n": n, "ms": result.total_ms, "host_ms": result.host_ms,
                    "speedup": full / result.total_ms,
                }  # fmt: skip


def main() -> int:
    rows = Path(sys.argv[1])
    try:
        gpu = CudaDevice()
    except (NativeKernelsMissing, H2OError) as reason:
        print(reason)
        return NOT_HERE
    for row in times(gpu):
        print(row, flush=True)
        append(rows, "prefill", row)
    return 0


if __name__ == "__main__":
    sys.exit(main())
