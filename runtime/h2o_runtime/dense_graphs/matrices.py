"""The matrices of a dense graph: their nodes, and their values from the files beside it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.names import DensePrecision


@dataclass(frozen=True)
class QuantizedProduct:
    """A product of activations [n, K] with a matrix that DequantizeLinear makes from integers.

    dequantize, product  its nodes; product is a MatMul, or a Gemm that transposes the matrix
    weight, scales       initializers: [K, N] and [K / block, N]; where transposed [N, K] and [N, K / block]
    offset               the Gemm that adds the offsets' term, or None: sums of activations [n, K / block],
                         the offsets [K / block, N], the product
    """

    dequantize: Any
    product: Any
    weight: str
    scales: str
    bits: Literal[4, 8]
    block_size: int
    transposed: bool
    offset: Any | None

    @property
    def output(self) -> str:
        """With the offsets, if there are any."""
        name: str = (self.product if self.offset is None else self.offset).output[0]
        return name


def quantized_products(graph: Any) -> Iterator[QuantizedProduct]:
    """All such products of a GraphProto. Lookups are not among them: they read few rows, which become floats
    on their own.
    """
    from onnx import TensorProto

    bits: dict[int, Literal[4, 8]] = {TensorProto.INT8: 8, TensorProto.INT4: 4}
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    readers: dict[str, list[Any]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    for node in graph.node:
        if node.op_type != "DequantizeLinear" or types.get(node.input[0]) not in bits:
            continue
        settings = {attribute.name: attribute.i for attribute in node.attribute}
        (product,) = readers[node.output[0]]
        yield QuantizedProduct(
            dequantize=node,
            product=product,
            weight=node.input[0],
            scales=node.input[1],
            bits=bits[types[node.input[0]]],
            block_size=settings["block_size"],
            transposed=product.op_type == "Gemm",
            offset=_offset(product, readers, types),
        )


ROUTER = ".mlp.gate.weight"  # the end of a name: rounding would choose other experts


@dataclass(frozen=True)
class FloatProduct:
    """A Gemm of activations [n, K] with a matrix of floats.

    weight  an initializer [N, K]: float32, or float16 behind a Cast to float32
    bias    an initializer [N] that it adds, or ""
    bits    of the factors in a native product: 16 is bfloat16
    """

    product: Any
    weight: str
    bias: str
    bits: Literal[16, 32]

    @property
    def output(self) -> str:
        name: str = self.product.output[0]
        return name


def float_products(graph: Any, precision: DensePrecision = "float32") -> Iterator[FloatProduct]:
    """All such products of a GraphProto, in the exporter's form. Routers stay float32."""
    from onnx import TensorProto, helper

    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    singles = {name for name, of in types.items() if of == TensorProto.FLOAT}
    halves = {name for name, of in types.items() if of == TensorProto.FLOAT16}
    cast = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "Cast"}
    matrices = {name: name for name in singles}
    matrices |= {name: source for name, source in cast.items() if source in halves}
    defaults = {"alpha": 1.0, "beta": 1.0, "transA": 0}
    for node in graph.node:
        if node.op_type == "Gemm" and node.input[1] in matrices:
            settings = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
            bias = node.input[2] if len(node.input) > 2 else ""
            if defaults | settings == defaults | {"transB": 1} and (not bias or bias in singles):
                weight = matrices[node.input[1]]
                rounded = precision == "bfloat16" and not weight.endswith(ROUTER)
                yield FloatProduct(node, weight, bias, 16 if rounded else 32)


def _offset(product: Any, readers: Mapping[str, Sequence[Any]], constants: Collection[str]) -> Any | None:
    name = product.output[0]
    for node in readers.get(name, ()):
        if node.op_type == "Gemm" and list(node.input[2:]) == [name] and node.input[1] in constants:
            return node
    return None


@dataclass(frozen=True)
class Matrix:
    """q int8 [N, K]; scales [N, K / block size], of the graph's dtype. Their rows or their columns are contiguous,
    as the graph stores them.
    """

    q: NDArray[np.int8]
    scales: NDArray[np.floating]

    @classmethod
    def read(cls, product: QuantizedProduct, tensors: Mapping[str, Any], folder: Path) -> Matrix:
        """`tensors` are initializers by name, whose data are in files below `folder`."""
        weight = tensors[product.weight]
        data = _mapped(weight, folder)
        q = data.view(np.int8) if product.bits == 8 else unpack(data)
        q = q.reshape(tuple(weight.dims))
        scales = floats(tensors[product.scales], folder)
        if not product.transposed:
            q, scales = q.T, scales.T
        return cls(q, scales)

    @property
    def block_size(self) -> int:
        size: int = self.q.shape[1] // self.scales.shape[1]
        return size


def floats(tensor: Any, folder: Path) -> NDArray[np.floating]:
    """A float32 or float16 initializer, with its data in a file in `folder` or inside the model."""
    from onnx import TensorProto

    half = tensor.data_type == TensorProto.FLOAT16
    return _mapped(tensor, folder).view(np.float16 if half else np.float32).reshape(tuple(tensor.dims))


def unpack(data: NDArray[np.uint8]) -> NDArray[np.int8]:
    """Two 4-bit integers per byte, the first in its low half → int8."""
    out = np.empty((len(data), 2), np.int8)
    out[:, 0] = (data << 4).view(np.int8) >> 4
    out[:, 1] = data.view(np.int8) >> 4
    return out.reshape(-1)


def _mapped(tensor: Any, folder: Path) -> NDArray[np.uint8]:
    where = {entry.key: entry.value for entry in tensor.external_data}
    if not where:
        return np.frombuffer(tensor.raw_data, np.uint8)
    offset, length = int(where["offset"]), int(where["length"])
    return np.memmap(folder / where["location"], np.uint8, "r", offset, (length,))
