"""Native kernels, where they were built: this package finds and loads them."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

__all__ = [
    "NativeKernelsMissing",
    "cpu_kernels",
    "cuda_kernels",
    "load_cpu_kernels",
    "load_cuda_kernels",
    "onnxruntime_cuda_operators",
    "onnxruntime_operators",
    "tensorrt_plugins",
]


class NativeKernelsMissing(ImportError):  # noqa: N818 - says what is the case, as ModuleNotFoundError does
    """The kernels asked for were not built into this installation."""


def load_cpu_kernels() -> ModuleType:
    """The module of the CPU kernels. Raises NativeKernelsMissing with the reason and what to do."""
    return _load(
        "_cpu",
        "the native CPU kernels",
        "build them with `pip install .` in the repository (needs CMake and a C++17 compiler), or use the ONNX "
        "function bodies instead",
    )


def cpu_kernels() -> ModuleType | None:
    """The module of the CPU kernels, or None where they are not built."""
    try:
        return load_cpu_kernels()
    except NativeKernelsMissing:
        return None


def load_cuda_kernels() -> ModuleType:
    """The module of the CUDA kernels. Raises NativeKernelsMissing with the reason and what to do."""
    return _load(
        "_cuda",
        "the CUDA kernels",
        "build them with `pip install . -C cmake.define.H2O_CUDA=ON` in the repository (needs CMake and nvcc, see "
        "docs/cuda.md)",
    )


def cuda_kernels() -> ModuleType | None:
    """The module of the CUDA kernels, or None where they are not built."""
    try:
        return load_cuda_kernels()
    except NativeKernelsMissing:
        return None


def _load(name: str, what: str, remedy: str) -> ModuleType:
    module = f"{__name__}.{name}"
    try:
        return importlib.import_module(module)
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError) and error.name == module
        reason = "are not part of this installation" if absent else f"cannot be loaded ({error})"
        raise NativeKernelsMissing(f"{what} {reason}: {remedy}") from error


def onnxruntime_operators() -> Path:
    """The library of operators for ONNX Runtime's CPU. Raises NativeKernelsMissing as load_cpu_kernels does."""
    load_cpu_kernels()  # says what is wrong where nothing was built; both are, or neither is
    library = _library("libh2o_onnxruntime.so")
    if library is None:
        raise NativeKernelsMissing(
            "the operators for ONNX Runtime, libh2o_onnxruntime.so, are not part of this installation: build it "
            "again with `pip install .` in the repository"
        )
    return library


def onnxruntime_cuda_operators() -> Path:
    """The library of operators for ONNX Runtime on a GPU. Raises NativeKernelsMissing as load_cuda_kernels does."""
    load_cuda_kernels()
    library = _library("libh2o_onnxruntime_cuda.so")
    if library is None:
        raise NativeKernelsMissing(
            "the operators for ONNX Runtime's CUDA provider, libh2o_onnxruntime_cuda.so, are not part of this "
            "installation: build it again with `pip install . -C cmake.define.H2O_CUDA=ON` in the repository"
        )
    return library


def tensorrt_plugins() -> Path | None:
    """The TensorRT plugin library that was installed with this package, or None where it was not built."""
    return _library("libh2o_trt_plugins.so")


def _library(name: str) -> Path | None:
    for folder in __path__:  # an editable installation has two: the sources, and what was built from them
        library = Path(folder) / name
        if library.is_file():
            return library
    return None
