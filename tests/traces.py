"""Traced graphs, kept in files: the first process that exports a graph traces it, and other processes read it.

Tracing takes torch most of a second a graph. Many tests export models whose graphs differ in their weights
alone, and weights are bound later. A file's name is a hash of the model's settings, the sources and the versions
of libraries.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import onnx_ir as ir

REPO = Path(__file__).resolve().parents[1]
FOLDER = REPO / "build" / "traces"
SOURCES = ("export/h2o_export", "runtime/h2o_runtime", "tests/toys")
LIBRARIES = ("torch", "onnx", "onnx_ir", "onnxscript")

Traced = tuple[ir.Model, list[ir.Value]]
Trace = Callable[[Any, Any, str], Traced]


def share() -> None:
    """From now on this process reads what any process has traced before, and writes what it traces."""
    from h2o_export.dense import graphs

    if not hasattr(graphs.trace_graph, "__wrapped__"):
        graphs.trace_graph = _shared(graphs.trace_graph)


def _shared(trace: Trace) -> Trace:
    FOLDER.mkdir(parents=True, exist_ok=True)
    sources = _sources()

    @functools.wraps(trace)
    def trace_graph(dense: Any, config: Any, dtype: str) -> Traced:
        key = f"{sources} {dense.alike(config)!r} {config!r} {dtype}"
        file = FOLDER / f"{hashlib.sha256(key.encode()).hexdigest()}.onnx"
        if file.exists():
            return read(file)
        model, parameters = trace(dense, config, dtype)
        write(model, parameters, file)
        return model, parameters

    return trace_graph


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
