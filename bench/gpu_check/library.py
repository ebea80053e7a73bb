"""libh2o_cuda through ctypes, with torch tensors as its memory."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, byref, c_float, c_int32, c_int64, c_size_t, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class Shape(Structure):
    """h2o_cuda_shape."""

    _fields_ = [
        ("query_heads", c_int32),
        ("kv_heads", c_int32),
        ("score_heads", c_int32),
        ("head_size", c_int32),
        ("scale", c_float),
        ("dtype", c_int32),
    ]


class State(Structure):
    """h2o_cuda_state."""

    _fields_ = [("o", c_void_p), ("m", c_void_p), ("l", c_void_p)]


_P, _I, _SHAPE, _STATE = c_void_p, c_int32, POINTER(Shape), POINTER(State)

# name -> argument types after the stream; the order of include/h2o/cuda.h.
_OPERATORS: dict[str, list[Any]] = {
    "chunked_intra_attention": [_SHAPE, _I, _I, _P, _P, _P, _STATE, _P],
    "memory_gather": [_SHAPE, _I, _P, _P, _P, _P, _P],
    "memory_attention": [_SHAPE, _I, _I, _P, _P, _P, _STATE, _P, _P, c_size_t],
    "memory_fused_attention": [_SHAPE, _I, _I, _P, _P, _P, _P, _STATE, _STATE, _P, _P, c_size_t],
    "online_softmax_fusion": [_SHAPE, _I, _STATE, _STATE, _STATE],
    "candidate_score": [_SHAPE, _I, _I, _I, _P, _P, _P, _P, _P, _P, _P, c_size_t],
    "score_update": [_I, _I, _P, _P, _I, _P],
    "score_gather": [_I, _I, _P, _P, _P],
    "memory_select": [_I, _I, _I, _I, _I, _P, _P, _P, _P],
    "cached_attention": [_SHAPE, _I, _I, _P, _P, _P, _P, _P, _P, c_size_t],
    "cache_append": [_SHAPE, _P, _P, _P, _P, _P],
    "write_integers": [_I, POINTER(c_int64), _P],
}
_WORKSPACES: dict[str, list[Any]] = {
    "memory_attention_workspace": [_SHAPE, _I, _I],
    "candidate_score_workspace": [_SHAPE, _I, _I, _I],
    "cached_attention_workspace": [_SHAPE, _I, _I],
}
_STATUS = ["ok", "bad argument", "unsupported", "out of workspace", "CUDA error"]


def _plain(value: Any) -> Any:
    """A tensor becomes its address, a structure a reference to it; None and numbers stay."""
    if hasattr(value, "data_ptr"):
        return value.data_ptr()
    return byref(value) if isinstance(value, Structure) else value


@dataclass
class Library:
    """Calls operators on torch's current stream; a status other than ok is an error."""

    path: Path

    def __post_init__(self) -> None:
        self._library = ctypes.CDLL(str(self.path))
        for name, types in _OPERATORS.items():
            function = getattr(self._library, f"h2o_cuda_{name}")
            function.argtypes, function.restype = [c_void_p, *types], c_int32
        for name, types in _WORKSPACES.items():
            function = getattr(self._library, f"h2o_cuda_{name}")
            function.argtypes, function.restype = types, c_size_t

    def run(self, stream: int, name: str, *arguments: Any) -> None:
        status = getattr(self._library, f"h2o_cuda_{name}")(stream, *map(_plain, arguments))
        if status != 0:
            raise RuntimeError(f"h2o_cuda_{name} returned {status}: {_STATUS[status]}")

    def workspace_bytes(self, name: str, *arguments: Any) -> int:
        return int(getattr(self._library, f"h2o_cuda_{name}_workspace")(*map(_plain, arguments)))


def offset(tensor: Any, row: int) -> int:
    """Address of row `row` of a contiguous tensor."""
    return int(tensor.data_ptr()) + row * int(tensor.stride(0)) * int(tensor.element_size())


__all__ = ["Library", "Shape", "State", "c_int64", "offset"]
