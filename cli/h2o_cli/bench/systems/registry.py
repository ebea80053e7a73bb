"""The systems by name."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from h2o_cli.bench.systems.attention import attention_system
from h2o_cli.bench.systems.base import OWN_SYSTEM, Settings, System
from h2o_cli.bench.systems.h2o import H2OSystem
from h2o_cli.bench.systems.llama_cpp import LlamaCppSystem
from h2o_cli.bench.systems.onnxruntime_genai import OnnxRuntimeGenAISystem
from h2o_cli.bench.systems.openvino_genai import OpenVinoGenAISystem
from h2o_cli.bench.systems.transformers import TransformersSystem

# A peer's library is imported when its system is constructed, in that contestant's process only.
SYSTEMS: MappingProxyType[str, Callable[[Settings], System]] = MappingProxyType(
    {
        OWN_SYSTEM: H2OSystem,
        "attention": attention_system,
        "llama.cpp": LlamaCppSystem,
        "transformers": TransformersSystem,
        "onnxruntime-genai": OnnxRuntimeGenAISystem,
        "openvino-genai": OpenVinoGenAISystem,
    }
)


def make_system(name: str, settings: Settings) -> System:
    """Raises Absent if this machine cannot run it, KeyError for an unknown name."""
    return SYSTEMS[name](settings)
