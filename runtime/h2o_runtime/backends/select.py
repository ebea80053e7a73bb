"""Choosing a backend and a device by name."""

from __future__ import annotations

import logging
from typing import Any

from h2o_plugins import NativeKernelsMissing, cuda_kernels
from h2o_runtime.backend import Backend
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.dense_graphs.native import can_widen, is_fast
from h2o_runtime.dense_graphs.packed_files import PackedFolder
from h2o_runtime.devices import Device, HostDevice
from h2o_runtime.engines import TARGETS
from h2o_runtime.errors import BackendError, ConfigError
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.names import (
    BACKENDS,
    DENSE_PRECISIONS,
    DEVICES,
    DenseChoice,
    DensePrecisionChoice,
    DeviceName,
)
from h2o_runtime.ort.cuda import CUDA_PROVIDER, import_onnxruntime
from h2o_runtime.policies.decode import DecodePolicy
from h2o_runtime.policies.prefill import PrefillPolicy
from h2o_runtime.providers.select import refusal_on_gpu as model_refusal_on_gpu


def make_backend(
    name: str,
    bundle: Bundle,
    device: Device,
    threads: int | None,
    context: int,
    dense_form: DenseChoice = "auto",
    packed: PackedFolder | None = None,
    dense_precision: DensePrecisionChoice = "auto",
) -> Backend:
    """For at most `context` tokens; `dense_form` is how ONNX Runtime multiplies on a CPU.

    packed           where packed weights are kept, or None
    dense_precision  of the factors of products with float weights

    Raises ConfigError for an unknown name, for a form or folder that would do nothing, and for a precision
    that this machine or the bundle lacks.
    """
    check_dense_form(dense_form, name, device.memory == "cpu", bundle.manifest.model.quantized)
    check_dense_precision(dense_precision, dense_form, name, device.memory == "cpu", bundle.manifest.model)
    if name == "onnxruntime":
        from h2o_runtime.backends.onnxruntime import OnnxRuntimeBackend

        return OnnxRuntimeBackend(bundle, threads, device, dense_form, packed, dense_precision)
    if packed is not None:
        raise ConfigError(
            "`packed_weights` has no effect with engines, which hold their own weights: leave it out",
            field="packed_weights",
        )
    if name in TARGETS:
        from h2o_runtime.backends.tensorrt import TensorRTBackend
        from h2o_runtime.devices.cuda import CudaDevice

        assert isinstance(device, CudaDevice), "make_device gives TensorRT a GPU"
        return TensorRTBackend(bundle, device, name, context)
    raise ConfigError(f"backend must be one of {', '.join(BACKENDS)}, but is {name!r}", field="backend")


def check_dense_form(dense_form: DenseChoice, backend: str, on_cpu: bool, quantized: bool) -> None:
    """Raises ConfigError for a dense form that has no effect there."""
    if dense_form in ("auto", "exact"):  # defaults
        return
    if backend != "onnxruntime" or not on_cpu:
        raise ConfigError(
            f"`dense_form={dense_form}` has no effect here: it is for ONNX Runtime on a CPU; leave it out",
            field="dense_form",
        )
    if not quantized and dense_form == "blocks":
        raise ConfigError(
            f"`dense_form={dense_form}` has no effect with float weights: leave it out, or export with --weights "
            "int8 or int4",
            field="dense_form",
        )


def check_dense_precision(
    precision: DensePrecisionChoice, dense_form: DenseChoice, backend: str, on_cpu: bool, model: ModelSpec
) -> None:
    """Raises ConfigError for a precision that is unknown, does nothing, or cannot be had there."""
    if precision not in DENSE_PRECISIONS:
        raise ConfigError(
            f"dense_precision must be one of {', '.join(DENSE_PRECISIONS)}, but is {precision!r}",
            field="dense_precision",
        )
    if precision != "bfloat16":
        return
    if backend != "onnxruntime" or not on_cpu:
        missing = "ONNX Runtime on a CPU"
    elif model.quantized and not can_widen():
        missing = "float weights, of h2o-export --weights float, or a processor with AMX"
    elif dense_form not in ("auto", "native"):
        missing = "`dense_form=native`"
    elif not is_fast():
        missing = "products of our own, on a processor with AVX2 or Arm's dot product"
    else:
        return
    raise ConfigError(
        f"dense products in bfloat16 need {missing}: leave out `dense_precision`, or use `dense_precision=float32`",
        field="dense_precision",
    )


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
    return model_refusal_on_gpu(model) or of_policy or (decoding.only_on_cpu if decoding else "")


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
