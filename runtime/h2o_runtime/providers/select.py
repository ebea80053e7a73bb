"""Choosing an attention provider by name, and the precision of its products."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from types import ModuleType

from h2o_plugins import NativeKernelsMissing, cpu_kernels, load_cpu_kernels
from h2o_runtime.attention.provider import AttentionProvider, AttentionShape
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.devices import Device
from h2o_runtime.errors import BackendError, ConfigError
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.names import PRECISIONS, PROVIDERS, AttentionPrecision, PrecisionChoice, ProviderName

log = logging.getLogger(__name__)


def provider_factory(
    name: str,
    bundle: Bundle,
    device: Device,
    threads: int | None,
    precision: PrecisionChoice = "float32",
) -> Callable[[], AttentionProvider]:
    """Makes inactive providers of one kind. "auto" is the native kernels if they are built and support the model's
    heads, otherwise the ONNX function bodies, which need a CPU. `precision` as in `choose_precision`.

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
            chosen = choose_precision(precision, "native", device, model)
            try:
                load_cpu_kernels()
            except NativeKernelsMissing as error:
                raise BackendError(str(error)) from error
            return partial(NativeCpuProvider, threads, precision=chosen)
        if name == "native":
            raise ConfigError(f"{_no_kernel(shape)}: use `attention=functions`", field="attention")
        log.warning("%s: attention runs as ONNX function bodies, which are much slower", _no_kernel(shape))
    choose_precision(precision, "functions", device, model)
    from h2o_runtime.providers.functions import FunctionProvider

    return partial(FunctionProvider, bundle, threads)


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


def _on_cuda(name: str, device: Device) -> Callable[[], AttentionProvider]:
    if name == "functions":
        raise ConfigError(
            "`attention=functions` runs on the CPU only: use `attention=native`, or `device=cpu`",
            field="attention",
        )
    from h2o_runtime.devices.cuda import CudaDevice
    from h2o_runtime.providers.cuda import NativeCudaProvider

    assert isinstance(device, CudaDevice)
    return partial(NativeCudaProvider, device)


_PROCESSORS = {"bfloat16": "AVX-512 or AArch64 with BF16", "int16": "AVX2, or AVX-512 with VNNI"}


def choose_precision(
    choice: PrecisionChoice, provider: ProviderName, device: Device, model: ModelSpec
) -> AttentionPrecision:
    """For the model's provider. "auto" is the processor's fastest if weights are integers, whose error is
    larger; otherwise float32.

    Raises ConfigError for an unknown precision, and for one that the provider or the processor lacks.
    """
    if choice not in PRECISIONS:
        raise ConfigError(
            f"attention_precision must be one of {', '.join(PRECISIONS)}, but is {choice!r}",
            field="attention_precision",
        )
    if choice == "float32":
        return choice
    if choice == "auto":
        kernels = _kernels(provider, device)
        return kernels.Kernels.fastest_precision() if kernels is not None and model.quantized else "float32"
    missing = _missing(choice, provider, device)
    if missing is not None:
        raise ConfigError(
            f"attention in {choice} needs {missing}: leave out `attention_precision`, or use "
            "`attention_precision=float32`",
            field="attention_precision",
        )
    return choice


def _kernels(provider: ProviderName, device: Device) -> ModuleType | None:
    return cpu_kernels() if provider == "native" and device.name != "cuda" else None


def _missing(precision: AttentionPrecision, provider: ProviderName, device: Device) -> str | None:
    """What the precision needs and this machine lacks."""
    if device.name == "cuda":
        return "the CPU, for on a GPU the model's own type is multiplied"
    kernels = _kernels(provider, device)
    if kernels is None:
        return "the native kernels, not the ONNX function bodies"
    if not kernels.Kernels.multiplies(precision):
        return f"a processor that multiplies such numbers ({_PROCESSORS[precision]})"
    return None
