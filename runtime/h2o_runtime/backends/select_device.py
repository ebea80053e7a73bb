"""Choosing a device by name."""

from __future__ import annotations

import logging
from typing import Any

from h2o_plugins import NativeKernelsMissing, cuda_kernels
from h2o_runtime.devices.device import Device
from h2o_runtime.devices.host import HostDevice
from h2o_runtime.errors import BackendError, ConfigError
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.names import DEVICES, DeviceName
from h2o_runtime.ort.cuda import CUDA_PROVIDER, import_onnxruntime
from h2o_runtime.policies.decode import DecodePolicy
from h2o_runtime.policies.prefill import PrefillPolicy
from h2o_runtime.providers.select import refusal_on_gpu as of_model

log = logging.getLogger(__name__)


def resolve_device(name: str, backend: str, refusal: str = "") -> DeviceName:
    """The device for `name`: "auto" is a GPU if the backend can use it, and there is no `refusal`.

    refusal: why a GPU does not run what is loaded (`refusal_on_gpu`). Raises ConfigError for an unknown name or a
    backend that cannot run there.
    """
    if name not in DEVICES:
        raise ConfigError(f"device must be one of {', '.join(DEVICES)}, but is {name!r}", field="device")
    needs_gpu = backend != "onnxruntime"
    if needs_gpu and name == "cpu":
        raise ConfigError(
            f"the backend {backend} runs on an NVIDIA GPU only: use the device cuda, or the backend onnxruntime",
            field="device",
        )
    if name != "auto" or needs_gpu:
        return "cpu" if name == "cpu" else "cuda"
    if not _gpu_is_usable():
        return "cpu"
    if refusal:
        log.warning("running on the CPU, not on the GPU: %s", refusal)
        return "cpu"
    return "cuda"


def refusal_on_gpu(
    model: ModelSpec, policy: PrefillPolicy[Any] | None, decoding: DecodePolicy[Any] | None
) -> str:
    """Why a GPU does not run a model, or a policy that was chosen for it; empty if it does."""
    of_policy = policy.refusal("cuda") if policy else ""
    return of_model(model) or of_policy or (decoding.only_on_cpu if decoding else "")


def make_device(name: str, backend: str, refusal: str = "") -> Device:
    """The device that `resolve_device` names. Raises BackendError if the GPU or its kernels are missing."""
    if resolve_device(name, backend, refusal) == "cpu":
        return HostDevice()
    from h2o_runtime.devices.cuda import CudaDevice

    try:
        return CudaDevice()
    except NativeKernelsMissing as error:
        raise BackendError(str(error)) from error


def _gpu_is_usable() -> bool:
    """Whether ONNX Runtime and our kernels can both use a GPU here."""
    if CUDA_PROVIDER not in import_onnxruntime().get_available_providers():
        return False
    kernels = cuda_kernels()
    if kernels is None:
        log.warning(
            "ONNX Runtime could use a GPU, but the CUDA kernels were not built: running on the CPU; "
            "docs/cuda.md says how to build them"
        )
        return False
    return bool(kernels.device_count())
