"""Writes h2o/operators.h, the table of operators for C++: `python generate.py TABLE.py HEADER`.

The table is run as a file. It imports two modules of `h2o_runtime` and the standard library alone, so that a build
needs no package.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

TYPES = {"T": "kModel", "float32": "kFloat", "int32": "kInt32", "int64": "kInt64"}
POINTERS = {"T": "void", "float32": "float", "int32": "int32_t", "int64": "int64_t"}


RUNTIME = Path(__file__).resolve().parents[2] / "runtime" / "h2o_runtime"


def load(path: Path) -> Any:
    """Run the table. The runtime's package is a bare folder here: its own imports need other packages."""
    package = ModuleType(RUNTIME.name)
    package.__path__ = [str(RUNTIME)]
    sys.modules[RUNTIME.name] = package
    spec = spec_from_file_location("h2o_operator_table", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


class Header:
    def __init__(self, table: Any) -> None:
        self._operators = (*table.OPERATORS, *table.RUNTIME_OPERATORS, *table.DENSE_OPERATORS)
        self._parts = {table.KEYS: "kKeys", table.VALUES: "kValues", table.LENGTH: "kLength"}
        self._dense = table.DENSE_OPERATORS
        self._plugins = [each.name for each in table.OPERATORS if each.plugin]
        names = [size for op in self._operators for each in op.tensors for size in each.shape]
        self._sizes = list(dict.fromkeys(name for name in names if not name.isdecimal()))

    def lines(self) -> Iterator[str]:
        yield "// Generated from h2o_runtime/operators.py by plugins/kernels/generate.py."
        yield "#pragma once"
        yield "namespace h2o {"
        yield f"enum Size {{ {', '.join(f'kSize_{name}' for name in self._sizes)}, kSizes }};"
        yield f"inline constexpr const char* kSizeNames[] = {{{', '.join(map(_text, self._sizes))}}};"
        yield "inline constexpr OperatorSpec kOperators[] = {"
        for operator in self._operators:
            yield from self._spec(operator)
        yield "};"
        yield "namespace calls {"
        for operator in self._operators:
            yield from self._arguments(operator)
        yield "}  // namespace calls"
        for kind in ("cpu", "cuda"):
            yield f"namespace {kind} {{"
            for operator in self._operators:
                if kind in operator.kernels:
                    yield f"h2o_status run(const calls::{operator.name}& call);"
                    if kind == "cuda":
                        yield f"size_t workspace(const calls::{operator.name}& call);"
            yield f"}}  // namespace {kind}"
        yield "}  // namespace h2o"
        for kind in ("cpu", "cuda"):
            names = [operator.name for operator in self._operators if kind in operator.kernels]
            yield f"#define H2O_{kind.upper()}_OPERATORS(X) {' '.join(f'X({name})' for name in names)}"
        dense = " ".join(f"X({operator.name})" for operator in self._dense)
        yield f"#define H2O_DENSE_OPERATORS(X) {dense}"
        yield f"#define H2O_PLUGIN_OPERATORS(X) {' '.join(f'X({name})' for name in self._plugins)}"

    def _spec(self, operator: Any) -> Iterator[str]:
        names = [tensor.name for tensor in operator.tensors]
        counts = f"{len(operator.inputs)}, {len(names)}, {len(operator.attributes)}, {_bool(operator.sinks)}"
        yield f"    {{{_text(operator.name)}, {_text(operator.method)}, {counts}, {{"
        for tensor in operator.tensors:
            part = self._parts.get(tensor.name, "kNone")
            in_place = names.index(tensor.in_place) if tensor.in_place else -1
            flags = f"{_bool(tensor.optional)}, {_bool(tensor.updated)}, {in_place}, {len(tensor.shape)}"
            sizes = ", ".join(self._number(size) for size in tensor.shape)
            kind = f"Type::{TYPES[tensor.dtype]}, Part::{part}"
            yield f"        {{{_text(tensor.name)}, {kind}, {flags}, {{{sizes}}}}},"
        yield "    }, {"
        for each in operator.attributes:
            least = 0 if each.least is None else each.least
            sizes = ", ".join(self._number(size) if size else "-1" for size in (each.gives, each.tiles))
            of_model = f"OfModel::k{each.name.capitalize() if each.of_model else 'Nothing'}"
            flags = f"{_bool(each.least is not None)}, {of_model}"
            absent = f"{_bool(each.default is not None)}, {each.default or 0}"
            yield f"        {{{_text(each.name)}, {flags}, {least}, {absent}, {sizes}}},"
        yield "    }},"

    def _number(self, size: str) -> str:
        return f"-{size}" if size.isdecimal() else str(self._sizes.index(size))

    def _arguments(self, operator: Any) -> Iterator[str]:
        """A structure of pointers, attributes and sizes by name, and how it is made of an h2o_call."""
        fields, makers = [], []
        for index, tensor in enumerate(operator.tensors):
            if self._parts.get(tensor.name) in ("kKeys", "kValues"):
                continue  # of kv
            constant = "const " if index < len(operator.inputs) and not tensor.updated else ""
            pointer = f"{constant}{POINTERS[tensor.dtype]}*"
            fields.append(f"{pointer} {tensor.name} = nullptr;")
            makers.append(f"{tensor.name} = static_cast<{pointer}>(call.tensors[{index}].data);")
            if tensor.dtype == "int64":
                fields.append(f"const int64_t* {tensor.name}_on_host = nullptr;")
                makers.append(f"{tensor.name}_on_host = call.tensors[{index}].host;")
        for index, each in enumerate(operator.attributes):
            if each.of_model:
                continue  # of the shape
            kind, value = ("float", "real") if each.least is None else ("int32_t", "integer")
            fields.append(f"{kind} {each.name} = 0;")
            makers.append(f"{each.name} = call.attributes[{index}].{value};")
        for name in dict.fromkeys(size for tensor in operator.tensors for size in tensor.shape):
            if not name.isdecimal():
                fields.append(f"int32_t {name} = 0;")
                makers.append(f"{name} = call.sizes[kSize_{name}];")
        yield f"struct {operator.name} : Call {{"
        yield from (f"    {field}" for field in fields)
        yield f"    {operator.name}() = default;"
        yield f"    explicit {operator.name}(const h2o_call& call) : Call(call) {{"
        yield from (f"        {maker}" for maker in makers)
        yield "    }"
        yield "};"


def _text(text: str) -> str:
    return f'"{text}"'


def _bool(value: bool) -> str:
    return "true" if value else "false"


def main(table: str, header: str) -> None:
    text = "\n".join(Header(load(Path(table))).lines()) + "\n"
    Path(header).parent.mkdir(parents=True, exist_ok=True)
    Path(header).write_text(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
