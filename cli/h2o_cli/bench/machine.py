"""A description of the machine that a reader of the results needs."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from h2o_runtime.process import default_threads


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
