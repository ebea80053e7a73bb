"""Whoever declares an operator says the same as the table in h2o_runtime.operators."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from h2o_runtime import PrefillConfig
from h2o_runtime.attention import AttentionProvider, AttentionShape
from h2o_runtime.attention.cuda import NativeCudaProvider
from h2o_runtime.attention.functions import FunctionProvider
from h2o_runtime.attention.native import NativeCpuProvider
from h2o_runtime.operators import DENSE_OPERATORS, DOMAIN, OPERATORS, Operator, TensorArgument

REPO = Path(__file__).resolve().parents[2]
KERNELS = REPO / "plugins" / "kernels" / "include" / "h2o"
ALL = (*OPERATORS, *DENSE_OPERATORS)
BY_NAME = {operator.name: operator for operator in ALL}

# What stands for a name of the table, where it is not the name itself. Kernels know their scale; what the arrays'
# sizes say is no argument; the fused attention works in place, and votes are cast on cache rows, not on a copy.
KNOWN = {"scale": (), "score_heads": (), "heavy": (), "budget": (), "chunk_range": ("start", "stop")}
KNOWN |= {"vertical": (), "slash": ()}
IN_PLACE = {"o_intra": ("o",), "m_intra": ("m",), "l_intra": ("l",)}
IN_PLACE |= {f"{name}_next": (name,) for name in ("k_mean", "v_mean", "k_min", "k_max")}
FROM_CACHE = {"CandidateScore": {"k_mem": ("k_cache", "memory")}}
LAYOUT = {"pages", "page_rows", "scales", "k_scales", "v_scales", "item_bytes"}  # of a cache
SIZES = {
    "n",
    "slots",
    "previous_slots",
    "score_heads",
    "capacity",
    "most_rows",
    "blocks",
    "vertical",
    "slash",
}  # addresses have none
VOTERS = {"CandidateScore": {"window"}}
TILES = {"MemoryFusedAttention": {"tile"}}  # on a CPU many calls are one
WORKSPACE = {"workspace", "workspace_bytes"}

# On a GPU a chunk's end is one launch, of which selecting is a part. It needs no kernels of one shape.
CHUNK_END = {"MemorySelect": "memory_step"}
OF_CHUNK_END = {"values", "replace", "last", "set", "set_scores"}  # arguments of what it does besides

# Operators that the runtime has no use for by themselves: the fused one does their work.
PARTS = {"MemoryGather", "MemoryAttention", "OnlineSoftmaxFusion"}


def translated(names: Iterable[str], words: Mapping[str, tuple[str, ...]]) -> list[str]:
    """The names in their order, each once."""
    return list(dict.fromkeys(word for name in names for word in words.get(name, (name,))))


def arguments(operator: Operator) -> tuple[str, ...]:
    """What a method takes, in order: tensors that are read, attributes, tensors that are written."""
    return operator.input_names + operator.attribute_names + operator.output_names


def stub_methods(module: str) -> dict[str, list[str]]:
    """Parameters of a native module's functions and of its Kernels' methods, which test_stubs.py checks."""
    tree = ast.parse((REPO / "plugins" / "h2o_plugins" / f"{module}.pyi").read_text())
    (kernels,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Kernels")
    methods = {}
    for node in (*tree.body, *kernels.body):
        if isinstance(node, ast.FunctionDef):
            names = [each.arg for each in (*node.args.args, *node.args.kwonlyargs)]
            methods[node.name] = [name for name in names if name not in LAYOUT | {"self"}]
    return methods


def test_the_table_is_a_table() -> None:
    """Names are unique, and every size of an output is shown by an input or given by attributes."""
    assert len(BY_NAME) == len(ALL)
    assert DOMAIN == "h2o"
    assert BY_NAME["CachedAttention"].method == "cached_attention"
    for operator in ALL:
        assert len(set(arguments(operator))) == len(arguments(operator))
        shown = {size for tensor in operator.inputs for size in tensor.shape}
        given = {attribute.gives for attribute in operator.attributes} - {""}
        assert not shown & given
        assert {size for tensor in operator.outputs for size in tensor.shape} <= shown | given


def test_function_bodies() -> None:
    pytest.importorskip("onnxscript")
    from h2o_export import operators

    bodies = (*operators.OPERATORS, *operators.DENSE_OPERATORS)
    assert [body.name for body in bodies] == list(BY_NAME)
    assert {(each.domain, each.version) for each in (body.opset for body in bodies)} == {("h2o", 1)}
    for proto in operators.function_protos(bodies):
        operator = BY_NAME[proto.name]
        assert tuple(proto.input) == operator.input_names
        assert tuple(proto.output) == operator.output_names
        assert tuple(proto.attribute) == operator.attribute_names
        source = inspect.signature(getattr(operators, proto.name).function).parameters
        for attribute in operator.attributes:
            kind = "float" if attribute.least is None else "int"
            assert source[attribute.name].annotation == kind


def test_what_exported_graphs_hold_has_a_plugin() -> None:
    """Of every policy and every score rule. The parts of a fused operator are plugins too, and nothing else is."""
    pytest.importorskip("onnxscript")
    from h2o_export.policies import POLICIES, policy_graphs

    configs = [PrefillConfig(policy=policy) for policy in POLICIES]
    configs += [PrefillConfig(score=score) for score in ("colsum", "window", "query")]
    shape = AttentionShape(4, 2, 16, 0.25, np.dtype(np.float32))
    graphs = [graph.model.graph for config in configs for graph in policy_graphs(config, shape)]
    held = {node.op_type for graph in graphs for node in graph.node if node.domain == DOMAIN}
    assert held | PARTS == {operator.name for operator in OPERATORS if operator.exported}


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)
def test_cpu_kernels(operator: Operator) -> None:
    words = {**KNOWN, **IN_PLACE, **FROM_CACHE.get(operator.name, {})}
    names = [*operator.input_names, *operator.attribute_names]
    if operator.name == "MemoryFusedAttention":
        names += ["o", "m", "l"]
    found = [
        name for name in stub_methods("_cpu")[operator.method] if name not in TILES.get(operator.name, ())
    ]
    assert found == translated([*names, *operator.output_names], words)


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)
def test_cuda_kernels(operator: Operator) -> None:
    methods = stub_methods("_cuda")
    if operator.name in PARTS:
        assert operator.method not in methods
        return
    words = {"scale": (), **IN_PLACE, **FROM_CACHE.get(operator.name, {})}
    found = set(methods[CHUNK_END.get(operator.name, operator.method)])
    found -= VOTERS.get(operator.name, set())
    if operator.name in CHUNK_END:
        assert operator.method not in methods
        assert found >= OF_CHUNK_END
        found -= OF_CHUNK_END
        words["chunk_range"] = ("start", "stop")
    expected = set(translated(arguments(operator), words))
    assert found - {"stream"} - SIZES - WORKSPACE == expected - SIZES
    assert expected <= found


def test_c_interfaces() -> None:
    for header, prefix, operators in (("cpu.h", "h2o_cpu_", OPERATORS), ("cuda.h", "h2o_cuda_", ALL)):
        declared = set(
            re.findall(rf"^h2o_status {prefix}(\w+)\(", (KERNELS / header).read_text(), re.MULTILINE)
        )
        assert {operator.method for operator in operators} <= declared


@pytest.mark.parametrize(
    "provider",
    [AttentionProvider, NativeCpuProvider, NativeCudaProvider, FunctionProvider],
    ids=lambda provider: provider.__name__,
)
def test_attention_providers(provider: type[Any]) -> None:
    cache = {"k_cache": ("kv",), "v_cache": ("kv",), "length": ("kv",)}
    state = dict.fromkeys(("o", "m", "l", "o_intra", "m_intra", "l_intra"), ("state",))
    renamed = {"memory_next": ("out",), "score_mem": ("score_memory",)}
    for operator in OPERATORS:
        if operator.name in PARTS:
            assert not hasattr(provider, operator.method)
            continue
        words: dict[str, tuple[str, ...]] = {**KNOWN, **cache, **renamed}
        words |= {name: words for name, words in IN_PLACE.items() if name.endswith("_next")}
        if operator.name == "CandidateScore":
            words["k_mem"] = ("kv", "memory")
        if {"l", "l_intra"} & set(arguments(operator)):
            words |= state
        found = list(inspect.signature(getattr(provider, operator.method)).parameters)
        assert found[1:] == translated(arguments(operator), words), operator.name


def test_tensorrt_plugins(tmp_path: Path) -> None:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler named c++")
    plugins, program = REPO / "plugins" / "tensorrt", tmp_path / "signatures"
    sources = [str(plugins / "signatures.cpp"), str(Path(__file__).with_name("tensorrt_signatures.cpp"))]
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-I", str(plugins)]
    subprocess.run([compiler, *flags, *sources, "-o", str(program)], check=True)
    printed = json.loads(subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout)

    def plain(tensors: tuple[TensorArgument, ...]) -> list[list[str]]:
        return [[tensor.name, tensor.dtype, *tensor.shape] for tensor in tensors]

    assert printed == [
        {
            "name": operator.name,
            "inputs": plain(operator.inputs),
            "outputs": plain(operator.outputs),
            "attributes": [list(dataclasses.astuple(attribute)) for attribute in operator.attributes],
        }
        for operator in ALL
        if operator.exported
    ]
