"""ONNX Runtime's settings for computing on a GPU together with other libraries."""

from __future__ import annotations

from functools import cache
from typing import Any

from h2o_runtime.errors import BackendError, unimportable

CUDA_PROVIDER = "CUDAExecutionProvider"
REMEDY = (
    "pip uninstall onnxruntime && pip install 'h2o-edge[gpu]' brings one that can, with the CUDA libraries that it "
    "needs; or use `device=cpu`"
)


def import_onnxruntime() -> Any:
    """The module. Raises BackendError that says which of the two packages to install, or why it does not load."""
    try:
        import onnxruntime
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and error.name in (None, "onnxruntime"):
            raise BackendError(
                "ONNX Runtime is not installed: pip install 'h2o-edge[cpu]', or 'h2o-edge[gpu]' on a machine with "
                "an NVIDIA GPU (one of the two, never both)"
            ) from None
        raise unimportable(error, f"ONNX Runtime is installed, but cannot be loaded: {error}") from error
    return onnxruntime


def version_of(ort: Any) -> tuple[int, ...]:
    """Major and minor."""
    return tuple(int(number) for number in ort.__version__.split(".")[:2])


@cache
def share_arena(ort: Any) -> None:
    """Register ONNX Runtime's memory arena on the GPU, which all sessions of the process share.

    Otherwise each session has its own, and arenas never shrink: the scratch memory of a whole batch, once per
    layer.
    """
    memory = ort.OrtMemoryInfo("Cuda", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    arena = ort.OrtArenaCfg({"arena_extend_strategy": 1})
    ort.create_and_register_allocator_v2(CUDA_PROVIDER, memory, {}, arena)


def require_provider(ort: Any) -> None:
    """Raises BackendError where ONNX Runtime was built without CUDA."""
    if CUDA_PROVIDER not in ort.get_available_providers():
        raise BackendError(f"this ONNX Runtime has no CUDA provider: {REMEDY}")


def cuda_providers(ort: Any, stream: int) -> list[Any]:
    """Providers of a session whose work uses `stream`. Raises BackendError if there is none for CUDA."""
    require_provider(ort)
    if hasattr(ort, "preload_dlls"):  # finds libraries installed by pip
        ort.preload_dlls()
    share_arena(ort)
    options = {
        "user_compute_stream": str(stream),
        "use_tf32": "0",  # No TF32: a bundle's tolerances assume float32.
        # Weights use the session's own arena, which takes what they need, not the next power of two.
        "arena_extend_strategy": "kSameAsRequested",
    }
    return [(CUDA_PROVIDER, options), "CPUExecutionProvider"]


def check_provider(session: Any) -> None:
    """Raises BackendError for a session on the CPU: ONNX Runtime leaves out a provider that does not load,
    without an error.
    """
    if session.get_providers()[0] != CUDA_PROVIDER:
        raise BackendError(
            f"ONNX Runtime's CUDA provider is installed but cannot be loaded, because cuDNN or another CUDA "
            f"library is missing: {REMEDY}"
        )
