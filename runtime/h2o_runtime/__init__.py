"""h2o-edge at run time: load a bundle, prefill long prompts sparsely, decode exactly."""

from h2o_runtime.answers.sampling import Sampling
from h2o_runtime.execution.reading import Watch
from h2o_runtime.generator import Generator
from h2o_runtime.policies.prefill import ColumnSum, Full, Query, Subquadratic, VerticalSlash, Window
from h2o_runtime.telemetry import decline_telemetry

__all__ = [
    "ColumnSum",
    "Full",
    "Generator",
    "Query",
    "Sampling",
    "Subquadratic",
    "VerticalSlash",
    "Watch",
    "Window",
]

# The only effect of the import. It also covers a program that imports onnxruntime itself after this line.
decline_telemetry()
