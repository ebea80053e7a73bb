"""Polygraphy runners around the runtime's own backends and attention providers."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
from numpy.typing import NDArray
from polygraphy.backend.base import BaseRunner
from polygraphy.common import TensorMetadata

from h2o_export.attention_graphs import AttentionStep, Feed, OperatorCall
from h2o_export.attention_graphs.step import put
from h2o_runtime.attention import AttentionProvider
from h2o_runtime.backend import Backend
from h2o_runtime.bundles.manifest import GraphSpec, TensorSpec
from h2o_runtime.devices import Device, Tensor


class _GraphRunner(BaseRunner):  # type: ignore[misc]
    """A runner with the interface of one graph of a bundle, on a device of the runtime."""

    def __init__(self, name: str, graph: GraphSpec, device: Device) -> None:
        super().__init__(name=name)
        self.graph = graph
        self.device = device

    def get_input_metadata_impl(self) -> TensorMetadata:
        metadata = TensorMetadata()
        for spec in self.graph.inputs:
            shape = [size if isinstance(size, int) else None for size in spec.shape]
            metadata.add(spec.name, dtype=np.dtype(spec.dtype), shape=shape)
        return metadata

    def infer_impl(self, feed_dict: Feed) -> OrderedDict[str, NDArray[Any]]:
        feed = {name: np.asarray(array, order="C") for name, array in feed_dict.items()}
        sizes = {
            dimension: size
            for spec in self.graph.inputs
            for dimension, size in zip(spec.shape, feed[spec.name].shape, strict=True)
            if isinstance(dimension, str)
        }
        outputs = {spec.name: self._empty(spec, sizes) for spec in self.graph.outputs}
        self.inference_time = 0.0
        self.compute(feed, outputs)
        return OrderedDict((name, self.device.download(tensor).copy()) for name, tensor in outputs.items())

    def compute(self, feed: Feed, outputs: dict[str, Tensor]) -> None:
        """Fill `outputs`, which are on the device, from `feed`, which is on the host."""
        raise NotImplementedError("a runner says how its graph is computed")

    def _empty(self, spec: TensorSpec, sizes: dict[str, int]) -> Tensor:
        shape = tuple(sizes[size] if isinstance(size, str) else size for size in spec.shape)
        return self.device.empty(shape, self._dtype(spec))

    def _dtype(self, spec: TensorSpec) -> np.dtype[Any]:
        return np.dtype(spec.dtype)


class BackendRunner(_GraphRunner):
    """A dense graph on one of the runtime's backends, which already has the graph activated."""

    def __init__(self, backend: Backend, graph: GraphSpec, device: Device) -> None:
        super().__init__(backend.name, graph, device)
        self.backend = backend

    def compute(self, feed: Feed, outputs: dict[str, Tensor]) -> None:
        inputs = {
            spec.name: put(self.device, feed[spec.name].astype(self._dtype(spec), copy=False))
            for spec in self.graph.inputs
        }
        self.backend.infer(self.graph.name, inputs, outputs)

    def _dtype(self, spec: TensorSpec) -> np.dtype[Any]:
        """What the backend computes in, where the bundle has float16."""
        return np.dtype(self.backend.model.dtype if spec.dtype == "float16" else spec.dtype)


class StepRunner(_GraphRunner):
    """An attention graph with the operators of an active attention provider."""

    def __init__(
        self, provider: AttentionProvider, step: AttentionStep, graph: GraphSpec, device: Device
    ) -> None:
        super().__init__(provider.name, graph, device)
        self.provider = provider
        self.step = step

    def compute(self, feed: Feed, outputs: dict[str, Tensor]) -> None:
        self.step.compute(OperatorCall(self.provider, self.device, feed, outputs))
