"""Attention engines with their plugins, executed by Polygraphy's own runner."""

from __future__ import annotations

from polygraphy.backend.base import BaseRunner

from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.bundles.manifest import GraphSpec
from h2o_runtime.engines import Machine, open_engines
from h2o_runtime.engines.machine import import_tensorrt, make_logger
from h2o_runtime.errors import BackendError


class AttentionEngines:
    """The plans of a bundle's attention graphs. Raises what `open_engines` raises."""

    def __init__(self, bundle: Bundle, target: str) -> None:
        machine = Machine.here(target)
        self._engines = open_engines(bundle, machine)
        self.manifest = self._engines.manifest
        self._trt = import_tensorrt(machine.target)
        self._logger = make_logger(self._trt)
        # The registry loads the library as trtexec --dynamicPlugins does; Polygraphy's loader would only map
        # it.
        if self._trt.get_plugin_registry().load_library(str(machine.plugins)) is None:
            raise BackendError(f"{machine.plugins}: TensorRT cannot load it: {self._logger.reason}")

    def runner(self, graph: GraphSpec) -> BaseRunner:
        """Polygraphy's TrtRunner for the engine of `graph`, in its first profile."""
        from polygraphy.backend.trt import EngineFromBytes, TrtRunner

        plan = self._engines.plan(graph.name)
        return TrtRunner(EngineFromBytes(plan.read_bytes()), name=self.manifest.target)
