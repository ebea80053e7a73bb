"""Chooses the precision of attention's products."""

from __future__ import annotations

from types import ModuleType

from h2o_plugins import cpu_kernels
from h2o_runtime.devices import Device
from h2o_runtime.errors import ConfigError
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.names import PRECISIONS, AttentionPrecision, PrecisionChoice, ProviderName

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
