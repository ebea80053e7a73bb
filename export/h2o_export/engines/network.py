"""From one ONNX file to one plan: TensorRT's parser, its builder and their error messages."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

from h2o_export.engines.dense_graph import prepared
from h2o_runtime.engines import Profile
from h2o_runtime.engines.machine import make_logger
from h2o_runtime.errors import BackendError, Cancelled

log = logging.getLogger(__name__)


@dataclass
class PlanBuilder:
    """Builds one engine after the other with one TensorRT module.

    sm              compute capabilities to build for; empty: TensorRT builds for the GPU that is there
    timing_cache    what earlier builds measured; layers that are alike are timed once, across all graphs
    stop            once set, a build ends at its next step and raises Cancelled
    """

    trt: Any
    sm: tuple[int, ...] = ()
    timing_cache: bytes | None = None
    stop: Event = field(default_factory=Event)

    def __post_init__(self) -> None:
        self.logger = make_logger(self.trt)
        self._monitor = _make_monitor(self.trt, self.stop)

    def load_plugins(self, library: Path) -> None:
        """Register the library's plugins with the parser. Raises BackendError if it cannot be loaded."""
        self.logger.errors.clear()
        try:
            handle = self.trt.get_plugin_registry().load_library(str(library))
        except Exception as error:  # pybind's wrapper of the loader's error
            raise BackendError(f"{library}: TensorRT cannot load it: {error}") from error
        if handle is None:
            raise BackendError(f"{library}: TensorRT cannot load it: {self.logger.reason}")

    def build(self, model: Path, profiles: Sequence[Profile], recorded: bool = False) -> Any:
        """The serialized engine, as a buffer. Raises BackendError with TensorRT's first error message, or
        Cancelled.

        recorded: the graph is a dense graph whose calls become part of a CUDA graph.
        """
        self.logger.errors.clear()
        builder = self._new_builder()
        network = builder.create_network(1 << int(self.trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
        parser = self.trt.OnnxParser(network, self.logger)
        parsed = parser.parse(prepared(model), str(model)) if recorded else parser.parse_from_file(str(model))
        if not parsed:
            raise BackendError(f"{model}: TensorRT's parser refuses it: {self._parse_error(parser)}")
        config = self._configure(builder, recorded)
        for profile in profiles:
            try:
                config.add_optimization_profile(_make_profile(builder, network, profile))
            except ValueError as error:
                raise BackendError(
                    f"{model}: TensorRT refuses the profile {profile.name}: {error}"
                ) from error
        plan = builder.build_serialized_network(network, config)
        if self.stop.is_set():
            raise Cancelled("the build was stopped")
        if plan is None:
            raise BackendError(f"{model}: TensorRT cannot build it: {self.logger.reason}")
        if self.timing_cache is not None:
            self.timing_cache = bytes(config.get_timing_cache().serialize())
        return plan

    def _new_builder(self) -> Any:
        try:
            return self.trt.Builder(self.logger)
        except TypeError as error:  # the bindings' error if the driver does not answer
            raise BackendError(f"TensorRT cannot start on this machine: {self.logger.reason}") from error

    def _configure(self, builder: Any, recorded: bool) -> Any:
        config = builder.create_builder_config()
        config.progress_monitor = self._monitor
        config.clear_flag(self.trt.BuilderFlag.TF32)  # No TF32: a bundle's tolerances assume float32.
        if recorded and hasattr(self.trt.BuilderFlag, "REQUIRE_USER_ALLOCATION"):
            # Otherwise TensorRT for RTX allocates scratch memory at run time for large shapes.
            config.set_flag(self.trt.BuilderFlag.REQUIRE_USER_ALLOCATION)
        if self.sm:
            config.num_compute_capabilities = len(self.sm)
            for index, sm in enumerate(self.sm):
                config.set_compute_capability(self.trt.ComputeCapability.__members__[f"SM{sm}"], index)
        if self.timing_cache is not None:
            cache = config.create_timing_cache(self.timing_cache)
            if cache is None or not config.set_timing_cache(cache, ignore_mismatch=False):
                log.info("the timing cache is of another TensorRT or GPU; starting a new one")
                config.set_timing_cache(config.create_timing_cache(b""), ignore_mismatch=False)
        return config

    def _parse_error(self, parser: Any) -> str:
        if not parser.num_errors:
            return str(self.logger.reason)
        error = parser.get_error(0)
        node = f"{error.node_name()} ({error.node_operator()}): " if error.node_operator() else ""
        return node + " ".join(error.desc().split())


def _make_profile(builder: Any, network: Any, profile: Profile) -> Any:
    """A TensorRT optimization profile. Values of an input are given only if shapes depend on them."""
    optimization = builder.create_optimization_profile()
    for index in range(network.num_inputs):
        tensor = network.get_input(index)
        shapes = profile.shapes[tensor.name]
        if tensor.is_shape_tensor:
            numbers = profile.values[tensor.name]
            optimization.set_shape_input(tensor.name, numbers.min, numbers.opt, numbers.max)
        else:
            optimization.set_shape(tensor.name, shapes.min, shapes.opt, shapes.max)
    return optimization


def _make_monitor(trt: Any, stop: Event) -> Any:
    """TensorRT asks this monitor between two build steps whether to continue."""

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            pass

        def phase_finish(self, phase_name: str) -> None:
            pass

        def step_complete(self, phase_name: str, step: int) -> bool:
            return not stop.is_set()

    return Monitor()
