"""Dense graphs on torch, for checks on machines where neither ONNX Runtime nor TensorRT can use the GPU.

Executes the few operators and functions of dense graphs with float weights, on the memory and stream of the
runtime's device. Each operator is a call of torch, which is slow: for checks only.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import Tensor

from h2o_runtime import Generator
from h2o_runtime.backend import StepTensors, Tensors
from h2o_runtime.backends.select_device import make_device
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.devices import Device
from h2o_runtime.devices.addresses import address_of
from h2o_runtime.devices.cuda import CudaDevice
from h2o_runtime.errors import BackendError
from h2o_runtime.layers.live import Layers, LayerSettings
from h2o_runtime.limits import MOST_STEP_ROWS
from h2o_runtime.loaded_model import LoadedModel
from h2o_runtime.names import DensePrecision, DeviceName
from h2o_runtime.providers.select import provider_factory
from h2o_runtime.sessions.spec import SessionSpec


def _gemm(
    a: Tensor, b: Tensor, c: Tensor | None = None, *, transA: int = 0, transB: int = 0, **_: Any
) -> Tensor:
    product = (a.T if transA else a) @ (b.T if transB else b)
    return product if c is None else product + c


def _norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)).to(x.dtype)


def _reshape(x: Tensor, shape: Tensor, allowzero: int = 0) -> Tensor:
    sizes = shape.tolist()
    return x.reshape([size or (0 if allowzero else x.shape[axis]) for axis, size in enumerate(sizes)])


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.float().chunk(2, dim=-1)
    c, s = cos.unsqueeze(1), sin.unsqueeze(1)
    return torch.cat((a * c - b * s, b * c + a * s), dim=-1).to(x.dtype)


def _cast(x: Tensor, to: int) -> Tensor:
    return x.to(torch.from_numpy(np.zeros(0, onnx.helper.tensor_dtype_to_np_dtype(to))).dtype)


def _shape(x: Tensor, start: int = 0, end: int | None = None) -> Tensor:
    return torch.tensor(list(x.shape)[start:end])


def _split(x: Tensor, sizes: Tensor, axis: int = 0, **_: Any) -> tuple[Tensor, ...]:
    return torch.split(x, sizes.tolist(), dim=axis)


# Sizes, axes and shapes are small tensors that stay on the host.
OPERATORS: dict[str, Callable[..., Any]] = {
    "Add": torch.add,
    "Cast": _cast,
    "Concat": lambda *parts, axis: torch.cat(parts, dim=axis),
    "Cos": torch.cos,
    "Expand": lambda x, shape: x.expand(torch.broadcast_shapes(x.shape, tuple(shape.tolist()))),
    "Gather": lambda x, indices, axis=0: x[indices],
    "GeGLU": lambda gate, up: torch.nn.functional.gelu(gate, approximate="tanh") * up,
    "Gemm": _gemm,
    "MatMul": torch.matmul,
    "Mul": torch.mul,
    "RMSNorm": _norm,
    "Reshape": _reshape,
    "Rotation": _rotate,
    "Shape": _shape,
    "Sin": torch.sin,
    "Split": _split,
    "Squeeze": lambda x, axes: x.squeeze(tuple(axes.tolist())),
    "SwiGLU": lambda gate, up: torch.nn.functional.silu(gate) * up,
    "Transpose": lambda x, perm: x.permute(*perm),
    "Unsqueeze": lambda x, axes: x.unsqueeze(int(axes[0])),
}


@dataclass(frozen=True)
class _Node:
    run: Callable[..., Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class _Graph:
    """A graph's nodes, and its weights where they are read."""

    def __init__(self, path: Path, weights: Callable[[Any, Path], Tensor]) -> None:
        graph = onnx.load(str(path), load_external_data=False).graph
        self.values = {value.name: weights(value, path.parent) for value in graph.initializer}
        self.nodes = [self._node(node, path) for node in graph.node]

    def _node(self, node: Any, path: Path) -> _Node:
        if node.op_type not in OPERATORS:
            raise BackendError(f"{path}: the check's torch backend has no operator {node.op_type}")
        attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        return _Node(partial(OPERATORS[node.op_type], **attributes), tuple(node.input), tuple(node.output))


class TorchBackend:
    """A step's calls allocate from torch, which reuses memory since the step's first run, so the step can be
    recorded.

    The recording shares this memory with the rest of the lane. That is safe because the lane runs in order,
    and no allocation of the lane outlives the step.
    """

    name = "torch"
    most_rows = sys.maxsize
    step_rows = MOST_STEP_ROWS

    def __init__(self, bundle: Bundle, device: Device) -> None:
        self.bundle = bundle
        self.model = bundle.manifest.model
        self.device = device
        self.recordable = device.memory == "cuda"  # torch on the host runs at once, recording or not
        self.native_products = False
        self.dense_precision: DensePrecision | None = None
        self._graphs: dict[str, _Graph] = {}
        self._shared: dict[tuple[str, int], Tensor] = {}  # weights that several graphs share

    def activate(self, only: Sequence[str] | None = None) -> None:
        for spec in self.bundle.manifest.weighty_graphs():
            if only is None or spec.name in only:
                self._graphs[spec.name] = _Graph(self.bundle.path(spec), self._weights)
        if self.device.memory == "cuda":
            torch.cuda.synchronize()  # weights were copied on torch's own stream

    def infer(self, graph: str, inputs: Tensors, outputs: Tensors) -> None:
        self._run(self._graphs[graph], self._views(inputs), self._views(outputs))

    def bound(self, graph: str, inputs: Tensors, outputs: Tensors) -> Callable[[], None]:
        return partial(self._run, self._graphs[graph], self._views(inputs), self._views(outputs))

    def load_hidden(self) -> None:
        raise BackendError("this backend has logits only")

    def load_draft(self) -> None:
        """It has no native products, with which drafts are made."""

    def whole_step(self, tensors: StepTensors) -> None:
        """A step runs its graphs one by one."""

    def deactivate(self) -> None:
        self.device.synchronize()
        self._graphs.clear()
        self._shared.clear()

    def _run(self, graph: _Graph, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> None:
        values = {**graph.values, **inputs}
        try:
            with torch.inference_mode(), self._stream():
                for node in graph.nodes:
                    result = node.run(*(values[name] for name in node.inputs))
                    results = result if isinstance(result, tuple) else (result,)
                    values.update(zip(node.outputs, results, strict=True))
                for name, target in outputs.items():
                    target.copy_(values[name])
        except RuntimeError as error:
            raise BackendError(f"torch failed: {error}") from error

    def _stream(self) -> AbstractContextManager[Any]:
        if not isinstance(self.device, CudaDevice) or self.device.memory != "cuda":
            return nullcontext()
        return torch.cuda.stream(torch.cuda.ExternalStream(self.device.lanes.dense.handle))

    def _views(self, arrays: Tensors) -> dict[str, Tensor]:
        return {name: self._view(array) for name, array in arrays.items()}

    def _view(self, array: Any) -> Tensor:
        """The same memory as a tensor of torch."""
        if isinstance(array, np.ndarray):
            return torch.from_numpy(array)
        if self.device.memory == "cuda":
            return torch.as_tensor(_Interface(array), device="cuda")
        host = np.ctypeslib.as_array((ctypes.c_ubyte * array.nbytes).from_address(address_of(array)))
        return torch.from_numpy(host.view(array.dtype).reshape(array.shape))

    def _weights(self, value: Any, folder: Path) -> Tensor:
        """An initializer: large ones once on the device, sizes and axes on the host."""
        entries = {entry.key: entry.value for entry in value.external_data}
        if not entries:
            tensor = torch.from_numpy(numpy_helper.to_array(value).copy())
            return tensor.to(self._where) if tensor.is_floating_point() else tensor
        place = (entries["location"], int(entries.get("offset", 0)))
        if place not in self._shared:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(value.data_type)
            count = int(np.prod(value.dims, dtype=np.int64))
            data = np.fromfile(folder / place[0], dtype, count, offset=place[1]).reshape(tuple(value.dims))
            self._shared[place] = torch.from_numpy(data).to(self._where)
        return self._shared[place]

    @property
    def _where(self) -> str:
        return "cuda" if self.device.memory == "cuda" else "cpu"


class _Interface:
    """An array on the GPU as torch takes it."""

    def __init__(self, array: Any) -> None:
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (array.address, False),
            "version": 3,
            "stream": None,
        }
        self._array = array


def load_on_torch(
    folder: Path, context: int, device: DeviceName, settings: LayerSettings | None = None
) -> Generator:
    """As Generator.load. Raises BackendError if a graph has an unsupported operator."""
    torch.backends.cuda.matmul.allow_tf32 = False
    bundle = Bundle.open(folder)
    place = make_device(device, "onnxruntime")
    backend = TorchBackend(bundle, place)
    backend.activate()
    layers = Layers(bundle.manifest.model, provider_factory("auto", bundle, place, None), settings)
    loaded = LoadedModel.of(SessionSpec(bundle, context, place, layers), backend)
    generator = Generator(loaded)
    loaded.warm_up(generator.session)
    return generator
