"""A new operator is a row of the table, an ONNX body, a kernel of each kind, and its test: nothing else is touched.

The program is linked against the registry alone, whose other kernels are left unresolved and never called.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib import util
from pathlib import Path

import numpy as np
import pytest
from tests import emulation

REPO = Path(__file__).resolve().parents[2]
TOY, KERNELS = REPO / "tests" / "toys" / "toy_operator", REPO / "plugins" / "kernels"
EMULATOR = REPO / "tests" / "plugins" / "cuda" / "emulator"
COMPILER = shutil.which("c++")
SOURCES = {
    "cpu": [TOY / "cpu.cpp", KERNELS / "cpu" / "registry.cpp"],
    "cuda": [TOY / "cuda.cu", *(KERNELS / "cuda" / name for name in ("registry.cpp", "last_error.cpp"))],
}
FLAGS = {
    "cpu": ["-I", KERNELS / "cpu"],
    "cuda": ["-DH2O_EMULATED", "-U_FORTIFY_SOURCE", "-I", EMULATOR, "-I", KERNELS / "cuda"],
}


@pytest.mark.skipif(COMPILER is None or sys.platform != "linux", reason="needs a C++ compiler on Linux")
@pytest.mark.parametrize("kind", ["cpu", pytest.param("cuda", marks=pytest.mark.slow)])
def test_a_toy_operator_runs(tmp_path: Path, kind: str) -> None:
    emulator = []
    if kind == "cuda":
        if missing := emulation.missing():
            pytest.skip(missing)
        emulator = emulation.emulator_objects()
    header, program = tmp_path / "h2o" / "operators.h", tmp_path / "program"
    subprocess.run([sys.executable, KERNELS / "generate.py", TOY / "table.py", header], check=True)
    command = [
        *(str(COMPILER), "-std=c++17", "-x", "c++", "-Wno-unknown-pragmas", "-I", tmp_path),
        *("-I", KERNELS / "include", *FLAGS[kind]),
        *(TOY / "program.cpp", KERNELS / "resolve.cpp", *SOURCES[kind]),
        *("-x", "none", *emulator),
        *("-Wl,--unresolved-symbols=ignore-all", "-Wl,-z,lazy", "-no-pie", "-pthread", "-o", program),
    ]
    subprocess.run(command, check=True)
    x = np.random.default_rng(0).standard_normal((37, 5)).astype(np.float32)
    given = {"input": "\n".join(map(str, x.ravel())), "capture_output": True, "text": True}
    done = subprocess.run([program, "37", "5", "3"], **given, check=True)  # type: ignore[call-overload]
    expected = (np.abs(x.astype(np.float64)) ** 3).sum(axis=1)
    np.testing.assert_allclose(np.array(done.stdout.split(), np.float64), expected, rtol=1e-5)
    refused = subprocess.run([program, "37", "5", "0"], **given, check=False)  # type: ignore[call-overload]
    assert refused.stderr == "toy_row_powers: power is out of range: 0 is below 1\n"


def test_its_body_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    spec = util.spec_from_file_location("toy_body", TOY / "body.py")
    assert spec is not None
    assert spec.loader is not None
    body = util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, body)  # onnxscript looks it up
    spec.loader.exec_module(body)
    helper = onnx.helper
    x, y = (
        helper.make_tensor_value_info(name, 1, sizes) for name, sizes in (("x", [None, None]), ("y", [None]))
    )
    node = helper.make_node("ToyRowPowers", ["x"], ["y"], domain="h2o", power=3)
    model = helper.make_model(
        helper.make_graph([node], "toy", [x], [y]),
        functions=[body.ToyRowPowers.to_function_proto()],
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("h2o", 1)],
        ir_version=10,
    )
    rows = np.random.default_rng(1).standard_normal((4, 6)).astype(np.float32)
    (found,) = runtime.InferenceSession(model.SerializeToString()).run(None, {"x": rows})
    np.testing.assert_allclose(found, (np.abs(rows.astype(np.float64)) ** 3).sum(axis=1), rtol=1e-5)
