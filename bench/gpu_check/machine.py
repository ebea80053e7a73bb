"""A description of this machine for the report. Everything here is fast."""

from __future__ import annotations

import ctypes
import importlib.metadata
import platform
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
MAJOR, MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*


@dataclass(frozen=True)
class Gpu:
    name: str
    architecture: str  # such as 87
    driver: str  # the CUDA version that it supports


def first_gpu() -> Gpu | None:
    """From the driver itself, which every machine with a GPU has; None without a GPU."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    count, version, major, minor = (ctypes.c_int() for _ in range(4))
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        return None
    name = ctypes.create_string_buffer(256)
    cuda.cuDeviceGetName(name, len(name), 0)
    cuda.cuDeviceGetAttribute(ctypes.byref(major), MAJOR, 0)
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), MINOR, 0)
    cuda.cuDriverGetVersion(ctypes.byref(version))
    knows = f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"
    return Gpu(name.value.decode(errors="replace"), f"{major.value}{minor.value}", knows)


def facts(gpu: Gpu | None, command: list[str]) -> dict[str, str]:
    """One row of the report."""
    release = re.search(r"release ([\d.]+)", _output("nvcc", "--version"))
    return {
        "gpu": gpu.name if gpu else "none",
        "compute capability": gpu.architecture if gpu else "",
        "driver": gpu.driver if gpu else "",
        "nvcc": release[1] if release else "not found",
        "torch": _version("torch"),
        "cpu": platform.machine(),
        "commit": _output("git", "-C", str(REPO), "rev-parse", "--short", "HEAD").strip() or "unknown",
        "command": " ".join(command),
    }


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
