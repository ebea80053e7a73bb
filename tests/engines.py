"""What tests of TensorRT engines share: TensorRT for RTX where it is installed, and a double of TensorRT."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, IntEnum
from types import ModuleType, SimpleNamespace
from typing import Any

import onnx
import pytest

from h2o_runtime.engines import TARGETS
from h2o_runtime.engines.machine import import_tensorrt
from h2o_runtime.errors import BackendError


def tensorrt_rtx() -> Any:
    """TensorRT for RTX, which builds engines without a GPU; the calling test is skipped where it is missing."""
    try:
        return import_tensorrt(TARGETS["tensorrt-rtx"])
    except BackendError as error:
        pytest.skip(str(error))


class Double(ModuleType):
    """Stands for the package tensorrt, which needs a GPU even to parse: records what the builder asks of it.

    A "plan" is the name of its graph; a "timing cache" lists the names of the graphs that were timed with it.
    """

    __version__ = "10.3.0"

    def __init__(self) -> None:
        super().__init__("tensorrt")
        self.built: dict[str, Build] = {}
        self.libraries: list[str] = []
        self.shape_inputs: set[str] = set()  # inputs whose numbers TensorRT would want to know
        self.refuse_library: Exception | None = None
        self.refuse_cache = False

        class Severity(Enum):
            INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = range(5)

        class Logger:
            pass

        Logger.Severity = Severity  # type: ignore[attr-defined]
        self.ILogger = Logger
        self.IProgressMonitor = type("IProgressMonitor", (), {})
        self.NetworkDefinitionCreationFlag = IntEnum("Flag", {"EXPLICIT_BATCH": 0, "STRONGLY_TYPED": 1})
        self.BuilderFlag = IntEnum("BuilderFlag", {"TF32": 7, "REQUIRE_USER_ALLOCATION": 20})
        self.OnnxParser = Parser
        self.Builder = lambda logger: Builder(self)

    def get_plugin_registry(self) -> Any:
        return SimpleNamespace(
            load_library=self._load_library,
            get_creator=lambda *name: self.libraries[-1] if self.libraries else None,
        )

    def _load_library(self, path: str) -> object:
        if self.refuse_library is not None:
            raise self.refuse_library
        self.libraries.append(path)
        return object()


@dataclass
class Build:
    """One engine as it was asked for."""

    flags: int
    model: onnx.ModelProto | None = None
    profiles: list[dict[str, tuple[Any, ...]]] = field(default_factory=list)
    cleared: list[int] = field(default_factory=list)
    set: list[int] = field(default_factory=list)
    cache: bytes | None = None


class Builder:
    def __init__(self, double: Double) -> None:
        self.double = double

    def create_network(self, flags: int) -> Any:
        return Network(self.double, Build(flags))

    def create_builder_config(self) -> Any:
        return Config(self.double)

    def create_optimization_profile(self) -> Any:
        shapes: dict[str, tuple[Any, ...]] = {}
        return SimpleNamespace(
            shapes=shapes,
            set_shape=lambda name, *sizes: shapes.update({name: sizes}),
            set_shape_input=lambda name, *numbers: shapes.update({f"{name} =": numbers}),
        )

    def build_serialized_network(self, network: Network, config: Config) -> bytes:
        build = network.build
        assert build.model is not None
        name = build.model.graph.name
        build.profiles, build.cleared, build.set = config.profiles, config.cleared, config.set
        build.cache = config.cache
        if config.cache is not None:
            config.cache += f"{name} ".encode()
        self.double.built[name] = build
        return name.encode()


@dataclass
class Network:
    double: Double
    build: Build

    @property
    def num_inputs(self) -> int:
        assert self.build.model is not None
        return len(self.build.model.graph.input)

    def get_input(self, index: int) -> Any:
        assert self.build.model is not None
        name = self.build.model.graph.input[index].name
        return SimpleNamespace(name=name, is_shape_tensor=name in self.double.shape_inputs)


class Parser:
    num_errors = 0

    def __init__(self, network: Network, logger: Any) -> None:
        self.network = network

    def parse(self, model: bytes, path: str) -> bool:
        self.network.build.model = onnx.load_from_string(model)
        return True

    def parse_from_file(self, path: str) -> bool:
        self.network.build.model = onnx.load(path, load_external_data=False)
        return True


class Config:
    def __init__(self, double: Double) -> None:
        self.double = double
        self.profiles: list[dict[str, tuple[Any, ...]]] = []
        self.cleared: list[int] = []
        self.set: list[int] = []
        self.cache: bytes | None = None

    def set_flag(self, flag: int) -> None:
        self.set.append(int(flag))

    def clear_flag(self, flag: int) -> None:
        self.cleared.append(int(flag))

    def add_optimization_profile(self, profile: Any) -> None:
        self.profiles.append(profile.shapes)

    def create_timing_cache(self, content: bytes) -> bytes:
        return content

    def set_timing_cache(self, cache: bytes, ignore_mismatch: bool) -> bool:
        if cache and self.double.refuse_cache:
            return False
        self.cache = cache
        return True

    def get_timing_cache(self) -> Any:
        assert self.cache is not None
        return SimpleNamespace(serialize=lambda: self.cache)
