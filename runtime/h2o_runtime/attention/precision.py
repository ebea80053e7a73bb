"""Chooses the precision of attention's products."""

from __future__ import annotations

from h2o_plugins import cpu_kernels
from h2o_runtime.devices import Device
from h2o_runtime.errors import ConfigError
from h2o_runtime.model import ModelSpec
from h2o_runtime.names import PRECISIONS, AttentionPrecision, PrecisionChoice, ProviderName


def choose_precision(
    choice: PrecisionChoice, provider: ProviderName, device: Device, model: ModelSpec
) -> AttentionPrecision:
    """For the model's provider. "auto" is bfloat16 if weights are integers, whose error is larger, and the
    processor has bfloat16 products; otherwise float32.

    Raises ConfigError for an unknown precision, and for one that the provider or the processor lacks.
    """
    if choice not in PRECISIONS:
        raise ConfigError(
            f"attention_precision must be one of {', '.join(PRECISIONS)}, but is {choice!r}",
            field="attention_precision",
        )
    if choice == "float32":
        return choice
    missing = _missing(provider, device)
    if choice == "auto":
        return "bfloat16" if missing is None and model.quantized else "float32"
    if missing is not None:
        raise ConfigError(
            f"attention in bfloat16 needs {missing}: leave out `attention_precision`, or use "
            "`attention_precision=float32`",
            field="attention_precision",
        )
    return choice


def _missing(provider: ProviderName, device: Device) -> str | None:
    """What bfloat16 needs and this machine lacks."""
    if device.name == "cuda":
        return "the CPU, for on a GPU the model's own type is multiplied"
    kernels = cpu_kernels() if provider == "native" else None
    if kernels is None:
        return "the native kernels, not the ONNX function bodies"
    if not kernels.Kernels.multiplies_bfloat16():
        return "a processor that multiplies such numbers (AVX-512 or AArch64 with BF16)"
    return None
