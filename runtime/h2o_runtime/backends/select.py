"""Choosing a backend by name."""

from __future__ import annotations

from h2o_runtime.backends.base import Backend
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.devices import Device
from h2o_runtime.engines import TARGETS
from h2o_runtime.errors import ConfigError
from h2o_runtime.names import BACKENDS, DenseChoice
from h2o_runtime.ort.packed_files import PackedFolder


def make_backend(
    name: str,
    bundle: Bundle,
    device: Device,
    threads: int | None,
    context: int,
    dense_form: DenseChoice = "auto",
    packed: PackedFolder | None = None,
) -> Backend:
    """For at most `context` tokens; `dense_form` is how ONNX Runtime multiplies on a CPU.

    packed  where packed weights are kept, or None

    Raises ConfigError for an unknown name, and for a form or folder that would do nothing.
    """
    check_dense_form(dense_form, name, device.memory == "cpu", bundle.manifest.model.quantized)
    if name == "onnxruntime":
        from h2o_runtime.backends.onnxruntime import OnnxRuntimeBackend

        return OnnxRuntimeBackend(bundle, threads, device, dense_form, packed)
    if packed is not None:
        raise ConfigError(
            "`packed_weights` does nothing here: engines hold their own", field="packed_weights"
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
            f"`dense_form={dense_form}` does nothing here: it is how ONNX Runtime multiplies on a CPU; leave it "
            "out",
            field="dense_form",
        )
    if not quantized and dense_form == "blocks":
        raise ConfigError(
            f"`dense_form={dense_form}` does nothing with float weights: leave it out, or export with --weights "
            "int8 or int4",
            field="dense_form",
        )
