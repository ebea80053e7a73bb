"""TensorRT engines of a bundle: what was built, and whether it fits this machine."""

from h2o_runtime.engines.load import EngineSet, open_engines
from h2o_runtime.engines.machine import TARGETS, Machine, Target
from h2o_runtime.engines.manifest import EngineManifest, EngineSpec, Profile, TensorRange, bundle_sha256

__all__ = [
    "TARGETS",
    "EngineManifest",
    "EngineSet",
    "EngineSpec",
    "Machine",
    "Profile",
    "Target",
    "TensorRange",
    "bundle_sha256",
    "open_engines",
]
