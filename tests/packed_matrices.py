"""Random matrices of native products, as their nodes are given them and as float64 reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

from h2o_runtime.bundles.manifest import GraphSpec
from h2o_runtime.dense_graphs.native import operators
from h2o_runtime.dense_graphs.packed import pack, pack_bfloat16, pack_floats, pack_scales

BLOCK = 32


@dataclass(frozen=True)
class RandomMatrix:
    """[N, K]: `values` are what q, scales and offsets stand for."""

    q: NDArray[np.int8]
    scales: NDArray[np.float32]
    offsets: NDArray[np.float32]
    values: NDArray[np.float32]

    @classmethod
    def draw(cls, draw: np.random.Generator, n: int, k: int, bits: int, offsets: bool) -> RandomMatrix:
        limit = 127 if bits == 8 else 7
        q = draw.integers(-limit, limit + 1, (n, k)).astype(np.int8)
        scales = (draw.random((n, k // BLOCK), np.float32) + 0.5) / (limit * k**0.5)
        shift = np.zeros_like(scales)
        if offsets:
            shift = draw.standard_normal((n, k // BLOCK)).astype(np.float32) / k
        values = q * np.repeat(scales, BLOCK, 1) + np.repeat(shift, BLOCK, 1)
        return cls(q, scales, shift, values.astype(np.float32))


def packed(matrices: Sequence[RandomMatrix], bits: int, offsets: bool) -> dict[str, NDArray[Any]]:
    """Weights, scales and offsets of matrices together, those that there are."""
    if bits in (16, 32):
        pack_some = pack_floats if bits == 32 else pack_bfloat16
        return {
            "weights": np.concatenate([pack_some(one.values).reshape(-1).view(np.uint8) for one in matrices])
        }
    made: dict[str, NDArray[Any]] = {
        "weights": np.concatenate(
            [pack(one.q, 8 if bits == 8 else 4, BLOCK).reshape(-1) for one in matrices]
        ),
        "scales": np.concatenate([pack_scales(one.scales).reshape(-1) for one in matrices]),
    }
    if offsets:
        made["offsets"] = np.concatenate([pack_scales(one.offsets).reshape(-1) for one in matrices])
    return made


def node_model(
    op_type: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    constants: Mapping[str, NDArray[Any]],
    types: Mapping[str, int] | None = None,
    **attributes: Any,
) -> ModelProto:
    """One native node. A caller gives those inputs that are no constants, as floats or of other `types`, and gets
    outputs whose names are not of scratch memory. "" is an input that the node has not.
    """
    node = helper.make_node(op_type, inputs, outputs, domain="h2o.cpu", **attributes)
    given = [name for name in inputs if name and name not in constants]
    wanted = [name for name in outputs if name not in ("order", "scratch")]
    values = [
        [
            helper.make_tensor_value_info(name, (types or {}).get(name, TensorProto.FLOAT), None)
            for name in names
        ]
        for names in (given, wanted)
    ]
    arrays = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("h2o.cpu", 1)]
    return helper.make_model(
        helper.make_graph([node], "node", *values, arrays), opset_imports=opsets, ir_version=10
    )


def drawn(graph: GraphSpec, n: int) -> dict[str, NDArray[Any]]:
    """Inputs of a dense graph for n rows."""
    draw, inputs = np.random.default_rng(n), {}
    for spec in graph.inputs:
        shape = [n if isinstance(size, str) else size for size in spec.shape]
        whole = spec.dtype == "int64"
        inputs[spec.name] = (
            draw.integers(0, 50, shape) if whole else draw.standard_normal(shape).astype(spec.dtype)
        )
    return inputs


def session(model: ModelProto, threads: int = 1) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    options.register_custom_ops_library(str(operators()))
    return onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


def rows(*shape: int, seed: int = 1) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
