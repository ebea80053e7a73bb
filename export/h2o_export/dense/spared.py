"""torch's exporter without work that a program of this package does not need: half of its processor time.

These are names inside torch: where a version lacks a function that is replaced here, it does that work.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx
from torch.onnx._internal.exporter import _fx_passes
from torch.onnx._internal.exporter._registration import ONNXRegistry

aten = torch.ops.aten
# Indices have a type of their own, and casts give another one: nothing is promoted.
_OF_SEVERAL_TYPES = {
    aten._to_copy.default,
    aten.embedding.default,
    aten.gather.default,
    aten.scatter.value,
    aten.topk.default,
}


@contextlib.contextmanager
def capture() -> Iterator[None]:
    """For torch.export: no node has the lines of Python that it came from, and shapes are computed each time.

    To look a shape up takes longer in graphs as small as ours.
    """
    import torch._dynamo.config  # torch's compiler, which takes a second to load

    with (
        _replaced(fx.config, "do_not_emit_stack_traces", True),
        torch._dynamo.config.patch(fake_tensor_cache_enabled=False),
    ):
        yield


@contextlib.contextmanager
def translation() -> Iterator[None]:
    """For torch.onnx: ONNX's library is read once a process, and types are promoted only where they differ.

    The library is 500 functions, of which torch parses the source. To promote types it runs the whole program.
    """
    promote = getattr(_fx_passes, "insert_type_promotion_nodes", None)

    def promote_some(module: fx.GraphModule) -> None:
        if promote is not None and any(_mixes_types(node) for node in module.graph.nodes):
            promote(module)

    with (
        _replaced(ONNXRegistry, "from_torchlib", staticmethod(_library)),
        _replaced(_fx_passes, "insert_type_promotion_nodes", promote_some),
    ):
        yield


@contextlib.contextmanager
def decompositions() -> Iterator[None]:
    """For torch.onnx: programs are translated as they are."""
    with _replaced(_fx_passes, "decompose_with_registry", lambda program, registry: program):
        yield


_read_library: Any = getattr(ONNXRegistry, "from_torchlib", None)


@functools.cache
def _library(opset_version: int) -> ONNXRegistry:
    library: ONNXRegistry = _read_library(opset_version)
    return library


def _mixes_types(node: fx.Node) -> bool:
    """Whether the node's tensors, read and written, have several types, and it is not of those that always do.

    torch promotes types of its own operators only.
    """
    if getattr(node.target, "namespace", None) != aten.name or node.target in _OF_SEVERAL_TYPES:
        return False
    values = [one.meta.get("val") for one in (node, *node.all_input_nodes)]
    tensors = [one for value in values for one in (value if isinstance(value, tuple | list) else (value,))]
    return len({tensor.dtype for tensor in tensors if isinstance(tensor, Tensor)}) > 1


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Meanwhile `owner.name` is `value`, if there is one."""
    if name not in vars(owner):
        yield
        return
    before = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
