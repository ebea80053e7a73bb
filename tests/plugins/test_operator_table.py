"""What the table in h2o_runtime.operators says, and what the exporter's function bodies say of themselves.

Kernels, Python modules, providers and TensorRT plugins are made from the table: where they lack an operator, they
do not build, or refuse it by its name.
"""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest
from tests.prefill import prefill_of

import h2o_plugins
from h2o_runtime.attention import AttentionShape
from h2o_runtime.operator_spec import Operator
from h2o_runtime.operators import DENSE_OPERATORS, DOMAIN, KEYS, LENGTH, OPERATORS, RUNTIME_OPERATORS, VALUES

GRAPHS = (*OPERATORS, *DENSE_OPERATORS)
ALL = (*GRAPHS, *RUNTIME_OPERATORS)
BY_NAME = {operator.name: operator for operator in ALL}
DOCS = Path(__file__).resolve().parents[2] / "docs" / "operators.md"


def test_the_table_is_a_table() -> None:
    """Names are unique, sizes of outputs are shown by inputs or given, and references lead somewhere."""
    assert len(BY_NAME) == len(ALL)
    assert DOMAIN == "h2o"
    assert BY_NAME["CachedAttention"].method == "cached_attention"
    for operator in ALL:
        names = [*(each.name for each in operator.tensors), *operator.attribute_names]
        assert len(set(names)) == len(names)
        shown = {size for tensor in operator.inputs for size in tensor.shape}
        given = {attribute.gives for attribute in operator.attributes} - {""}
        assert not shown & given
        assert {each.in_place for each in operator.outputs} - {""} <= set(operator.input_names)
        assert {each.tiles for each in operator.attributes} - {""} <= shown
        assert VALUES not in operator.input_names or KEYS in operator.input_names
        if operator in GRAPHS:  # the runtime gives outputs of any size that a kernel takes
            assert {size for tensor in operator.outputs for size in tensor.shape} <= shown | given | {"1"}
        for tensor in operator.tensors:
            assert tensor.dtype == "int64" or tensor.name not in (LENGTH,)


def test_function_bodies() -> None:
    pytest.importorskip("onnxscript")
    from h2o_export import operators

    bodies = (*operators.OPERATORS, *operators.DENSE_OPERATORS)
    assert [body.name for body in bodies] == [operator.name for operator in GRAPHS]
    assert {(each.domain, each.version) for each in (body.opset for body in bodies)} == {("h2o", 1)}
    for proto in operators.function_protos(bodies):
        operator = BY_NAME[proto.name]
        assert tuple(proto.input) == operator.input_names
        assert tuple(proto.output) == operator.output_names
        defaults = {each.name: each.i or each.f for each in proto.attribute_proto}
        assert (*proto.attribute, *defaults) == operator.attribute_names
        given = {each.name: each.default for each in operator.attributes if each.default is not None}
        assert defaults == given
        source = inspect.signature(getattr(operators, proto.name).function).parameters
        for attribute in operator.attributes:
            kind = "float" if attribute.least is None else "int"
            assert source[attribute.name].annotation == kind


def test_what_exported_graphs_hold_has_a_plugin() -> None:
    """Of every policy that a GPU runs, and every score rule. The parts of a fused operator are plugins too, and
    nothing else is.
    """
    pytest.importorskip("onnxscript")
    from h2o_export.policies import policy_graphs

    policies = [prefill_of(score=score) for score in ("colsum", "window", "query")] + [
        prefill_of(policy="full")
    ]
    shape = AttentionShape(4, 2, 16, 0.25, np.dtype(np.float32))
    graphs = [graph.model.graph for policy in policies for graph in policy_graphs(policy, shape)]
    parts = {"MemoryGather", "MemoryAttention", "OnlineSoftmaxFusion"}
    held = {node.op_type for graph in graphs for node in graph.node if node.domain == DOMAIN}
    assert held | parts == {operator.name for operator in OPERATORS if operator.plugin}


@pytest.mark.parametrize("operator", ALL, ids=lambda operator: operator.name)
def test_the_module_was_built_from_this_table(operator: Operator) -> None:
    module = h2o_plugins.cpu_kernels()
    if module is None:
        pytest.skip("the native kernels are not built")
    kernels = module.Kernels(1, "scalar", 2, 1, 8, 0.5, False)
    words = (
        "kv is missing" if KEYS in operator.input_names or LENGTH in operator.input_names else "is missing"
    )
    if "cpu" not in operator.kernels:
        words = "there is no kernel"
    with pytest.raises(ValueError, match=words):
        kernels.run(operator.name, None, {})


def test_an_operator_prints_its_tensors() -> None:
    assert str(BY_NAME["MemoryStep"]).splitlines() == [
        "MemoryStep",
        "    on   cuda",
        "    in   score float32 [cap, Hs]",
        "    in   memory int32 [Hs, Mp]",
        "    in   values? float32 [Hs, Mp]",
        "    out  memory_next int32 [Hs, M]",
        "    out  last? int32 [Hs, M]",
        "    out  boundary? int32 [Hs, M]",
        "    out  scores? float32 [Hs, M]",
        *(f"    with {name}" for name in ("add", "start", "stop", "local", "heavy")),
    ]


def test_docs_have_every_operator() -> None:
    rows = [line.split("|")[1].strip() for line in DOCS.read_text().splitlines() if line.startswith("| `")]
    assert rows == [f"`{operator.name}`" for operator in ALL]
