"""Traced graphs, kept in files: the first process that exports a graph traces it, and other processes read it.

Tracing takes torch up to a second a graph. Many tests export models whose graphs differ in their weights
alone, and weights are bound later. Others have some graphs in common: with more layers, or another context. A
file's name is a hash of all that the module is made of, the sources and the versions of libraries.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

if TYPE_CHECKING:
    from torch import nn

REPO = Path(__file__).resolve().parents[1]
FOLDER = REPO / "build" / "traces"
SOURCES = ("export/h2o_export", "runtime/h2o_runtime", "tests/toys")
LIBRARIES = ("torch", "onnx", "onnx_ir", "onnxscript")

Traced = tuple[ir.Model, list[ir.Value]]
Trace = Callable[[Any, Sequence[Any], Sequence[str], str], Traced]


def share() -> None:
    """From now on this process reads what any process has traced before, and writes what it traces.

    ONNX's library for torch is read once a process: 500 functions, whose source torch parses for each graph. And
    torch asks its dispatcher once which operators there are, not 28 times a graph. To look shapes up takes it
    longer than to compute them, and nobody reads where in the source a node comes from.
    """
    import torch._dynamo.config
    import torch.fx.config
    from torch._export import utils
    from torch.onnx._internal.exporter import _fx_passes
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    from h2o_export.dense import graphs

    names = vars(graphs)
    if not hasattr(names["trace"], "__wrapped__"):
        names["trace"] = _shared(names["trace"])
        torch._dynamo.config.fake_tensor_cache_enabled = False
        torch.fx.config.do_not_emit_stack_traces = True
        ONNXRegistry.from_torchlib = staticmethod(functools.cache(ONNXRegistry.from_torchlib))
        utils._materialize_cpp_cia_ops = functools.cache(utils._materialize_cpp_cia_ops)
        passes = vars(_fx_passes)
        passes["insert_type_promotion_nodes"] = _where_types_meet(passes["insert_type_promotion_nodes"])


def _where_types_meet(insert: Callable[[Any], None]) -> Callable[[Any], None]:
    """torch's pass runs a program once more, a seventh of a trace, and changes nothing in one type of floats."""
    import torch
    from torch.onnx._internal.fx.passes.type_promotion import TypePromotionTable

    table = TypePromotionTable()

    @functools.wraps(insert)
    def where_types_meet(program: Any) -> None:
        for node in program.graph.nodes:
            packet = getattr(node.target, "overloadpacket", None)
            values = (source.meta.get("val") for source in node.all_input_nodes)
            types = {value.dtype for value in values if isinstance(value, torch.Tensor)}
            alike = len(types) < 2 and all(one.is_floating_point for one in types)
            if packet is not None and table.get_rule(packet) is not None and not alike:
                insert(program)
                return

    return where_types_meet


def _shared(trace: Trace) -> Trace:
    FOLDER.mkdir(parents=True, exist_ok=True)
    sources = _sources()

    @functools.wraps(trace)
    def shared(module: nn.Module, inputs: Sequence[Any], outputs: Sequence[str], name: str) -> Traced:
        key = "\n".join([sources, repr(inputs), repr(outputs), *_description(module)])
        file = FOLDER / f"{hashlib.sha256(key.encode()).hexdigest()}.onnx"
        if file.exists():
            model, parameters = read(file)
            model.graph.name = name  # which is all that it tells of its place in the model
        else:
            model, parameters = trace(module, inputs, outputs, name)
            write(model, parameters, file)
        return model, parameters

    return shared


def _description(module: nn.Module) -> Iterator[str]:
    """All modules in it, their attributes, and the types and shapes of their tensors."""
    from torch import nn

    of_any = vars(nn.Module())
    for path, one in module.named_modules():
        own = [(name, _spelled(value)) for name, value in vars(one).items() if name not in of_any]
        tensors = (*one.named_parameters(recurse=False), *one.named_buffers(recurse=False))
        shapes = [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors]
        yield f"{path} {_spelled(type(one))} {own} {shapes}"


def _spelled(value: Any) -> str:
    """Classes and functions without an address, which another process does not know."""
    return f"{value.__module__}.{value.__qualname__}" if hasattr(value, "__qualname__") else repr(value)


def write(model: ir.Model, parameters: list[ir.Value], file: Path) -> None:
    """Parameters have no values yet: in the file they are data that lies elsewhere."""
    for value in parameters:
        assert value.name is not None
        assert value.dtype is not None
        assert value.shape is not None
        value.const_value = ir.ExternalTensor(
            file.name, 0, 0, value.dtype, shape=value.shape, name=value.name
        )
    own = file.with_suffix(f".{os.getpid()}")
    own.write_bytes(ir.to_proto(model).SerializeToString())
    own.rename(file)
    for value in parameters:
        value.const_value = None


def read(file: Path) -> Traced:
    import onnx

    model = ir.from_proto(onnx.load(file, load_external_data=False))
    values = model.graph.initializers.values()
    parameters = [value for value in values if isinstance(value.const_value, ir.ExternalTensor)]
    for value in parameters:
        value.const_value = None
    return model, parameters


def _sources() -> str:
    """A hash of what a traced graph depends on."""
    files = sorted(path for folder in SOURCES for path in (REPO / folder).rglob("*.py"))
    contents = [path.read_bytes() for path in files]
    versions = [f"{name} {version(name)}".encode() for name in LIBRARIES]
    return hashlib.sha256(b"\0".join([*contents, *versions])).hexdigest()
