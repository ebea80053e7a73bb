"""The committed type stubs are what nanobind's generator says of the modules as they are now."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from tests import emulation
from tools import stubs

import h2o_plugins

pytest.importorskip("nanobind")
pytest.importorskip("ruff")


def parameters(stub: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """Every function with its parameters, which no version of the generator writes otherwise."""
    for node in ast.walk(ast.parse(stub)):
        if isinstance(node, ast.FunctionDef):
            plain = [each.arg for each in node.args.args]
            yield node.name, plain, [each.arg for each in node.args.kwonlyargs]


@pytest.mark.parametrize("module", stubs.MODULES)
def test_a_stub_is_up_to_date(module: str) -> None:
    if module == "_cpu" and h2o_plugins.cpu_kernels() is None:
        pytest.skip("the native kernels are not built")
    if module == "_cuda" and emulation.missing() is not None:
        pytest.skip(str(emulation.missing()))
    committed = (stubs.STUBS / f"{module}.pyi").read_text()
    generated = stubs.generate(module)
    assert list(parameters(committed)) == list(parameters(generated)), "run make stubs"
    if committed.startswith(stubs.header()):
        assert committed == generated, "run make stubs"
