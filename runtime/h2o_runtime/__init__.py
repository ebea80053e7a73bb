"""h2o-edge at run time: load a bundle, prefill long prompts sparsely, decode exactly."""

from h2o_runtime.answers.sampling import Sampling
from h2o_runtime.config.prefill import PrefillConfig
from h2o_runtime.execution.forward import Watch
from h2o_runtime.generator import Generator
from h2o_runtime.telemetry import decline_telemetry

__all__ = ["Generator", "PrefillConfig", "Sampling", "Watch"]

# The only effect of the import. It also covers a program that imports onnxruntime itself after this line.
decline_telemetry()
