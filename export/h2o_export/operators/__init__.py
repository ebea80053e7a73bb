"""All operators of ONNX domain `h2o`, version 1, as functions of standard operators.

The bodies, in the modules *_operators, are the specification. Any ONNX runtime can execute them, and every
kernel is compared with them. Their signatures are those of h2o_runtime.operators; a test compares the two.
Sizes are named there, and G = Hq / Hkv. Arithmetic, states and scores are float32. An empty state has l = 0,
m = -inf.

onnxscript reads the bodies as source text, so they use its vocabulary: `op` is the ONNX operator set,
annotated parameters are attributes, `op.Constant` makes scalars and shapes.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable
from typing import Any

import onnx

from h2o_export.operators.attention import (
    CachedAttention,
    ChunkedIntraAttention,
    MemoryAttention,
    MemoryFusedAttention,
    MemoryGather,
    OnlineSoftmaxFusion,
)
from h2o_export.operators.delta import GatedDelta
from h2o_export.operators.dense import ClampedSwiGLU, GeGLU, ResidualNorm, RMSNorm, Rotation, SwiGLU
from h2o_export.operators.landmarks import LandmarkUpdate, SubquadraticAttention, SubquadraticMask
from h2o_export.operators.lines import DiagonalBlocks, VerticalSlashAttention, VerticalSlashSelect
from h2o_export.operators.mamba2 import Mamba2
from h2o_export.operators.opset import OPSET
from h2o_export.operators.pages import PageAttention, PageBounds, PageSelect
from h2o_export.operators.parts import HeadOutputs, HeadScores, HighestRising, SoftCap
from h2o_export.operators.selection import (
    BestRows,
    BlockSelect,
    CandidateScore,
    MemorySelect,
    QuerySelect,
    WithNeighbours,
)
from h2o_export.operators.votes import BlockVotes, QueryVotes, SampledVotes, VotingRows
from h2o_runtime import operators as table

DOMAIN, VERSION = table.DOMAIN, table.VERSION

OPERATORS = (
    ChunkedIntraAttention,
    MemoryGather,
    MemoryAttention,
    OnlineSoftmaxFusion,
    MemoryFusedAttention,
    CandidateScore,
    MemorySelect,
    BlockSelect,
    QuerySelect,
    CachedAttention,
    LandmarkUpdate,
    SubquadraticAttention,
    PageBounds,
    PageSelect,
    PageAttention,
    VerticalSlashSelect,
    VerticalSlashAttention,
    GatedDelta,
    Mamba2,
)

DENSE_OPERATORS = (RMSNorm, ResidualNorm, SwiGLU, ClampedSwiGLU, GeGLU, Rotation)
# In other bodies: no graph names them.
INLINED = (
    SoftCap,
    HeadScores,
    HeadOutputs,
    HighestRising,
    DiagonalBlocks,
    SubquadraticMask,
    VotingRows,
    SampledVotes,
    BlockVotes,
    QueryVotes,
    WithNeighbours,
    BestRows,
)
_CALLED = {function.name: function for function in (*INLINED, *OPERATORS)}
# What exported dense graphs name besides standard operators.
DENSE_FUNCTIONS = (RMSNorm, SwiGLU, ClampedSwiGLU, GeGLU, Rotation)


def function_protos(operators: Iterable[Any] = OPERATORS) -> tuple[onnx.FunctionProto, ...]:
    """The operators' bodies, in standard operators only. They are made once: do not change them."""
    return tuple(map(_function_proto, operators))


@functools.cache
def _function_proto(operator: Any) -> onnx.FunctionProto:
    proto: onnx.FunctionProto = operator.to_function_proto()
    del proto.opset_import[:]
    proto.opset_import.append(onnx.helper.make_opsetid("", OPSET))
    nodes = [
        _expanded(node, _function_proto(_CALLED[node.op_type])) if node.domain == DOMAIN else [node]
        for node in proto.node
    ]
    body = list(itertools.chain.from_iterable(nodes))
    del proto.node[:]
    proto.node.extend(body)
    return proto


def _expanded(call: onnx.NodeProto, callee: onnx.FunctionProto) -> list[onnx.NodeProto]:
    """Inline the body of `callee` at `call`, a node inside another body.

    ONNX lets one function call another. TensorRT's parser handles this wrongly: it silently reads the
    attribute `scale` as 0, and confuses values of the graph with values of the same name in the body.
    """
    prefix = f"{callee.name}.{call.output[0]}"  # a body may call one function twice
    values = dict(zip((*callee.input, *callee.output), (*call.input, *call.output), strict=True))
    attributes = {attribute.name: attribute for attribute in call.attribute}
    nodes = []
    for inner in callee.node:
        node = onnx.NodeProto()
        node.CopyFrom(inner)
        node.name = f"{prefix}.{inner.name}"
        for names in (node.input, node.output):
            names[:] = [name and values.get(name, f"{prefix}.{name}") for name in names]
        for attribute in node.attribute:
            if attribute.ref_attr_name:
                name = attribute.name
                attribute.CopyFrom(attributes[attribute.ref_attr_name])
                attribute.name = name
        nodes.append(node)
    return nodes
