"""Choosing an attention provider by name."""

from __future__ import annotations

import logging
from collections.abc import Callable

from h2o_plugins import NativeKernelsMissing, cpu_kernels
from h2o_runtime.attention.provider import AttentionProvider, AttentionShape
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.devices import Device
from h2o_runtime.errors import BackendError, ConfigError
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.names import PROVIDERS, PrecisionChoice
from h2o_runtime.providers.precision import choose_precision

log = logging.getLogger(__name__)


def make_provider(
    name: str,
    bundle: Bundle,
    device: Device,
    threads: int | None,
    precision: PrecisionChoice = "float32",
) -> AttentionProvider:
    """ "auto" is the native kernels if they are built and support the model's heads, otherwise the ONNX
    function bodies, which need a CPU. `precision` as in `choose_precision`.

    Raises ConfigError for a name or precision that is unknown, or not for the device or model, and
    BackendError for missing kernels.
    """
    if name not in PROVIDERS:
        raise ConfigError(
            f"attention must be one of {', '.join(PROVIDERS)}, but is {name!r}", field="attention"
        )
    model = bundle.manifest.model
    shape = model.attention
    if device.name == "cuda":
        if refusal := refusal_on_gpu(model):
            raise ConfigError(f"{refusal}: use `device=cpu`", field="device")
        choose_precision(precision, "native", device, model)
        return _on_cuda(name, device)
    if name == "native" or (name == "auto" and cpu_kernels() is not None):
        from h2o_runtime.providers.native import NativeCpuProvider

        if NativeCpuProvider.takes(shape):
            try:
                return NativeCpuProvider(
                    threads, precision=choose_precision(precision, "native", device, model)
                )
            except NativeKernelsMissing as error:
                raise BackendError(str(error)) from error
        if name == "native":
            raise ConfigError(f"{_no_kernel(shape)}: use `attention=functions`", field="attention")
        log.warning("%s: attention runs as ONNX function bodies, which are much slower", _no_kernel(shape))
    choose_precision(precision, "functions", device, model)
    from h2o_runtime.providers.functions import FunctionProvider

    return FunctionProvider(bundle, threads)


def provider_factory(
    name: str,
    bundle: Bundle,
    device: Device,
    threads: int | None,
    precision: PrecisionChoice = "float32",
) -> Callable[[], AttentionProvider]:
    """Makes several providers of the kind that `make_provider` chooses; the choice is made and logged
    once.
    """
    first = make_provider(name, bundle, device, threads, precision)
    chosen = "functions" if first.name == "functions" else name
    ready = [first]
    return lambda: ready.pop() if ready else make_provider(chosen, bundle, device, threads, precision)


def refusal_on_gpu(model: ModelSpec) -> str:
    """Why a GPU does not run a model, for messages; empty if it does."""
    from h2o_runtime.providers.cuda import NativeCudaProvider

    if model.lends_rows or model.layer_embedding:
        return "layers without keys of their own, or with embeddings of their own, do not run on a GPU yet"
    if not NativeCudaProvider.takes(model.attention):
        return f"{_no_kernel(model.attention)} on a GPU"
    return ""


def _no_kernel(shape: AttentionShape) -> str:
    return f"no kernel takes keys of {shape.head_size} and values of {shape.value_size} elements"


def _on_cuda(name: str, device: Device) -> AttentionProvider:
    if name == "functions":
        raise ConfigError(
            "`attention=functions` runs on the CPU only: use `attention=native`, or `device=cpu`",
            field="attention",
        )
    from h2o_runtime.devices.cuda import CudaDevice
    from h2o_runtime.providers.cuda import NativeCudaProvider

    assert isinstance(device, CudaDevice)
    return NativeCudaProvider(device)
