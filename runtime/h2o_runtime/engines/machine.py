"""The machine that engines are built on or loaded on: its TensorRT, its GPU, its plugin library."""

from __future__ import annotations

import ctypes
import importlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from h2o_plugins import tensorrt_plugins
from h2o_runtime.errors import BackendError, ConfigError
from h2o_runtime.names import TargetName


@dataclass(frozen=True)
class Target:
    """One of the two TensorRTs. `modules` are its import names; pip installs a part of it without the first
    of them.
    """

    name: TargetName
    title: str
    modules: tuple[str, ...]
    missing: str
    plugins: bool  # whether its networks can contain the attention plugins


TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        target.name: target
        for target in (
            Target(
                "tensorrt",
                "TensorRT",
                ("tensorrt", "tensorrt_bindings"),
                "pip install 'h2o-edge[tensorrt]'; on a Jetson it comes with JetPack (sudo apt install "
                "nvidia-jetpack), for virtual environments that were made with --system-site-packages",
                plugins=True,
            ),
            Target(
                "tensorrt-rtx",
                "TensorRT for RTX",
                ("tensorrt_rtx", "tensorrt_rtx_bindings"),
                "pip install 'h2o-edge[tensorrt-rtx]'",
                plugins=False,
            ),
        )
    }
)


@dataclass(frozen=True)
class Machine:
    """`sm` is the first GPU's compute capability (87 for 8.7), None without an NVIDIA GPU."""

    target: Target
    tensorrt: str
    sm: int | None
    plugins: Path | None = None

    @classmethod
    def here(cls, target: str, plugins: Path | None = None) -> Machine:
        """This machine. Raises BackendError if the target's package or the plugin library is missing."""
        chosen = find_target(target)
        version = str(import_tensorrt(chosen).__version__)
        library = find_plugins(plugins) if chosen.plugins else None
        return cls(chosen, version, compute_capability(), library)


def find_target(name: str) -> Target:
    """Raises ConfigError for an unknown name."""
    if name not in TARGETS:
        raise ConfigError(f"target must be one of {', '.join(TARGETS)}, but is {name!r}", field="target")
    return TARGETS[name]


def import_tensorrt(target: Target) -> Any:
    """The Python module of a target. Raises BackendError that says what to install, or why it does not load."""
    for name in target.modules:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise _unloadable(target, error) from error
        except (ImportError, OSError) as error:  # its libraries are missing, or the driver's
            raise _unloadable(target, error) from error
        else:
            if hasattr(module, "Builder"):  # any folder of that name on the path can be imported too
                return module
    raise BackendError(f"{target.title} is not installed: {target.missing}")


def find_plugins(path: Path | None) -> Path:
    """The plugin library: `path`, otherwise the one installed with this package. Raises BackendError."""
    if path is None:
        library = tensorrt_plugins()
        if library is None:
            raise BackendError(
                "the plugin library libh2o_trt_plugins.so is not part of this installation: build it "
                '(docs/cuda.md) and name it: --target "tensorrt plugins=FILE"'
            )
        return library
    if not path.is_file():
        raise BackendError(f"{path}: no such file; name the plugin library libh2o_trt_plugins.so")
    return path


def compute_capability() -> int | None:
    """The first GPU's, 87 for 8.7; None without an NVIDIA driver or without a GPU. Asks the driver
    directly.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, value = ctypes.c_int(), ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0):
        return None
    numbers = []
    for attribute in (75, 76):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
        if driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device):
            return None
        numbers.append(value.value)
    major, minor = numbers
    return 10 * major + minor


def _unloadable(target: Target, error: Exception) -> BackendError:
    return BackendError(f"{target.title} is installed but cannot be loaded ({error}): {target.missing}")


log = logging.getLogger(__name__)


def make_logger(trt: Any) -> Any:
    """A logger for TensorRT's objects, whose information messages appear with -vv. Keeps the first lines of
    errors.

    Clear `errors` before a call whose failure `reason` should explain.
    """
    levels = {
        trt.ILogger.Severity.INTERNAL_ERROR: logging.INFO,  # the caller raises it; here it would appear twice
        trt.ILogger.Severity.ERROR: logging.INFO,
        trt.ILogger.Severity.WARNING: logging.INFO,
    }

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            log.log(levels.get(severity, logging.DEBUG), "TensorRT: %s", message)
            if severity in (trt.ILogger.Severity.INTERNAL_ERROR, trt.ILogger.Severity.ERROR):
                self.errors.append(message.strip().splitlines()[0])

        @property
        def reason(self) -> str:
            """TensorRT's reason for the failure of the last call."""
            return self.errors[0] if self.errors else "it gives no reason; -v shows its log"

    return Logger()
