"""libh2o_cuda through ctypes, with torch tensors as its memory: the functions of tests/plugins/cuda/calls.h."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
HEADERS = [
    REPO / "plugins" / "kernels" / "include" / "h2o" / name for name in ("kv.h", "call.h", "subquadratic.h")
]
CALLS = REPO / "tests" / "plugins" / "cuda" / "calls.h"
STRUCTURES = ("h2o_kv", "h2o_shape", "h2o_cuda_state", "h2o_cuda_next_memory", "h2o_subquadratic")
STATUS = ["ok", "bad argument", "unsupported", "out of workspace", "CUDA error"]
_SCALARS = {
    "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
    "size_t": ctypes.c_size_t,
    "float": ctypes.c_float,
    "h2o_dtype": ctypes.c_int32,
    "h2o_status": ctypes.c_int32,
    "h2o_cuda_stream": ctypes.c_void_p,
}


@dataclass(frozen=True)
class Declarations:
    """The declarations of the headers: structures by C name, functions by name without `h2o_cuda_`."""

    structures: dict[str, type[ctypes.Structure]] = field(default_factory=dict)
    functions: dict[str, tuple[Any, list[Any]]] = field(default_factory=dict)  # result, arguments

    def kind(self, declaration: str) -> Any:
        """The ctypes type of a declaration such as `const h2o_kv* kv` or `int32_t n`."""
        name = declaration.replace("const ", "").replace("*", " ").split()[0]
        if "*" not in declaration:
            return _SCALARS[name]
        return ctypes.POINTER(self.structures[name]) if name in self.structures else ctypes.c_void_p


@cache
def declarations() -> Declarations:
    found = Declarations()
    text = "\n".join(path.read_text() for path in (*HEADERS, CALLS))
    text = re.sub(r"//[^\n]*", "", text)
    for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\}", text, re.DOTALL):
        if name not in STRUCTURES:
            continue
        lines = [line.strip() for line in body.split(";") if line.strip()]
        fields = [(re.findall(r"\w+", line)[-1], found.kind(line)) for line in lines]
        found.structures[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
    for result, name, arguments in re.findall(r"H2O_CALL ([\w ]+\*?) h2o_cuda_(\w+)\(([^)]*)\) \{", text):
        kinds = [found.kind(each) for each in arguments.split(",")]
        found.functions[name] = _SCALARS[result.strip()], kinds
    return found


class Library:
    """Every function `h2o_cuda_X` of the library as a method X; a status other than ok is an error.

    Arguments are as in the header, with tensors for pointers and structures for pointers to them.
    """

    def __init__(self, path: Path) -> None:
        library, declared = ctypes.CDLL(str(path)), declarations()
        library.h2o_cuda_last_error.restype = ctypes.c_char_p
        self.Shape = declared.structures["h2o_shape"]
        self.State = declared.structures["h2o_cuda_state"]
        self.KV = declared.structures["h2o_kv"]
        self.Pattern = declared.structures["h2o_subquadratic"]
        self.NextMemory = declared.structures["h2o_cuda_next_memory"]
        self._methods: dict[str, Callable[..., Any]] = {}
        for name, (result, arguments) in declared.functions.items():
            function = getattr(library, f"h2o_cuda_{name}")
            function.restype, function.argtypes = result, arguments
            self._methods[name] = _method(name, function, library.h2o_cuda_last_error)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        try:
            return self._methods[name]
        except KeyError:
            raise AttributeError(f"{CALLS} declares no h2o_cuda_{name}") from None


def _method(name: str, function: Any, last_error: Any) -> Callable[..., Any]:
    if name.endswith("_workspace"):
        return lambda *arguments: function(*map(_plain, arguments))

    def run(*arguments: Any) -> int:
        status = int(function(*map(_plain, arguments)))
        if status != 0:
            said = f", {last_error().decode()}" if STATUS[status] == "CUDA error" else ""
            raise RuntimeError(f"h2o_cuda_{name} returned {status}: {STATUS[status]}{said}")
        return status

    return run


def _plain(value: Any) -> Any:
    """A tensor becomes its address, a structure a reference to it; None and numbers stay."""
    if hasattr(value, "data_ptr"):
        return value.data_ptr()
    return ctypes.byref(value) if isinstance(value, ctypes.Structure) else value


def offset(tensor: Any, row: int) -> int:
    """Address of row `row` of a contiguous tensor."""
    return int(tensor.data_ptr()) + row * int(tensor.stride(0)) * int(tensor.element_size())
