"""h2o-edge at run time: load a bundle, prefill long prompts sparsely, decode exactly."""

from h2o_runtime.config import PrefillConfig
from h2o_runtime.forward import Watch
from h2o_runtime.generator import Generator
from h2o_runtime.sampling import Sampling

__all__ = ["Generator", "PrefillConfig", "Sampling", "Watch"]
