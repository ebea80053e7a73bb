"""Choosing an attention provider by name."""

from __future__ import annotations

from h2o_plugins import NativeKernelsMissing, cpu_kernels
from h2o_runtime.attention.base import AttentionProvider
from h2o_runtime.bundle import Bundle
from h2o_runtime.devices import Device
from h2o_runtime.errors import BackendError, ConfigError
from h2o_runtime.names import PROVIDERS


def make_provider(name: str, bundle: Bundle, device: Device, threads: int | None) -> AttentionProvider:
    """ "auto" takes the native kernels where they are built, else the ONNX function bodies, which need a CPU.

    Raises ConfigError for a name that is unknown or not for the device, BackendError where kernels are missing.
    """
    if name not in PROVIDERS:
        raise ConfigError(
            f"attention must be one of {', '.join(PROVIDERS)}, but is {name!r}", field="attention"
        )
    if device.name == "cuda":
        return _on_cuda(name, device)
    if name == "native" or (name == "auto" and cpu_kernels() is not None):
        from h2o_runtime.attention.native import NativeCpuProvider

        try:
            return NativeCpuProvider(threads)
        except NativeKernelsMissing as error:
            raise BackendError(str(error)) from error
    from h2o_runtime.attention.functions import FunctionProvider

    return FunctionProvider(bundle, threads)


def _on_cuda(name: str, device: Device) -> AttentionProvider:
    if name == "functions":
        raise ConfigError(
            "the ONNX function bodies run on the CPU only: choose the attention native, or the device cpu",
            field="attention",
        )
    from h2o_runtime.attention.cuda import NativeCudaProvider
    from h2o_runtime.devices.cuda import CudaDevice

    assert isinstance(device, CudaDevice)
    return NativeCudaProvider(device)
