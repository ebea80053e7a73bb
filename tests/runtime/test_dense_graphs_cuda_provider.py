"""Dense graphs as ONNX Runtime's CUDA provider runs them, by the same nodes of its CPU provider."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import onnx
import onnx.inliner
import pytest
from numpy.typing import NDArray
from tests import bundles
from tests.bundles import relative_error

from h2o_runtime import Generator
from h2o_runtime.backends import onnxruntime
from h2o_runtime.backends.onnxruntime import OnnxRuntimeBackend
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.dense_graphs.cuda_provider import unrecordable, with_own_kernels, without_dequantization
from h2o_runtime.dense_graphs.integer_product_trial import ROWS, WIDTHS, shortcoming
from h2o_runtime.dense_operators import DENSE_OPERATORS
from h2o_runtime.errors import BackendError
from h2o_runtime.operators import DOMAIN
from h2o_runtime.ort import session
from h2o_runtime.policies.prefill import Full

TIED, UNTIED = "llama-g2-d64-llama3", "qwen2-g4-d32"
FULL = Full()
BUNDLES = {  # the error that rounding to the bundle's floats explains
    "int8, tied": (TIED, "-int8", {"weights": "int8"}, 1e-5),
    "offsets": (UNTIED, "-int4+offset", {"weights": "int4+offset"}, 1e-5),
    "float16, int8": (TIED, "-half-int8", {"weights": "int8", "dtype": "float16"}, 8e-3),
    "float16, int4": (UNTIED, "-half-int4", {"weights": "int4", "dtype": "float16"}, 8e-3),
}


HALF = ("-float16", {"dtype": "float16"})
OWN_KERNELS: dict[str, Any] = {
    "float16": (TIED, *HALF),
    "float32": (UNTIED, "", {}),
    "norms of heads": ("qwen3-g2-d128", "", {}),
}


def exported(root: Path, name: str) -> Path:
    shape, variant, options, _ = BUNDLES[name]
    return bundles.named(root, shape, variant, **options)[1]


def inlined(model: Any) -> Any:
    """With the bodies of its functions, and nothing else changed."""
    return onnx.inliner.inline_local_functions(model)


def logits(folder: Path, form: Any) -> NDArray[np.float32]:
    """After a prompt and two steps, and after a prompt of as few rows as steps have."""
    with Generator.load(folder, context=64, threads=1, device="cpu", dense_form=form) as generator:
        found = [generator.prefill(bundles.random_ids(40), FULL).copy()]
        found += (generator.decode(token).copy() for token in (3, 4))
        generator.reset()
        return np.array([*found, generator.prefill(bundles.random_ids(12), FULL).copy()])


def with_operators(monkeypatch: pytest.MonkeyPatch, library: Path) -> None:
    """Sessions that would have none get these."""

    def open_session(*given: Any, operators: Path | None, **named: Any) -> Any:
        assert operators is None
        return session.open_session(*given, operators=library, **named)

    monkeypatch.setattr(onnxruntime, "open_session", open_session)


def activated_on_gpu(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, trial: Callable[[Any], Any] = lambda session: session
) -> tuple[OnnxRuntimeBackend, list[Any]]:
    """A backend whose GPU is the emulation on ONNX Runtime's CPU provider, and the graphs that it loads.

    trial: gives the session of the trial of IntegerProduct, a model without files, in place of the one it would be
    """
    given: list[Any] = []

    def open_session(model: bytes, *, beside: Path | None, operators: Path, **_: Any) -> Any:
        opened = session.open_session(model, threads=1, beside=beside, operators=operators)
        if beside is None:
            return trial(opened)
        given.append(onnx.load_from_string(model))
        return opened

    monkeypatch.setattr(onnxruntime, "open_session", open_session)
    monkeypatch.setattr(onnxruntime, "require_provider", lambda ort: None)
    gpu: Any = SimpleNamespace(memory="cuda")
    backend = OnnxRuntimeBackend(bundle, device=gpu)
    backend.activate()
    return backend, given


def products_of(models: Iterable[Any]) -> Counter[str]:
    kinds = Counter(node.op_type for model in models for node in model.graph.node)
    return Counter({kind: kinds[kind] for kind in ("MatMulNBits", "IntegerProduct") if kinds[kind]})


@pytest.mark.parametrize("name", BUNDLES)
def test_numbers_are_those_of_the_graph_as_it_is(
    name: str, shared_folder: Path, emulated_operators: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = exported(shared_folder, name)
    exact = logits(folder, "exact")
    made: list[Any] = []

    def rewritten(model: Any, beside: Path) -> Any:
        made.append(without_dequantization(model, beside, own=True))
        return made[-1]

    monkeypatch.setattr(onnxruntime, "multiply_integers", rewritten)
    with_operators(monkeypatch, emulated_operators)
    assert relative_error(logits(folder, "blocks"), exact) < BUNDLES[name][3]
    half = "float16" in name
    assert set(products_of(made)) == {"IntegerProduct" if half else "MatMulNBits"}
    assert not any("IntegerProduct" in unrecordable(model) for model in made)


@pytest.mark.parametrize("name", OWN_KERNELS)
def test_own_kernels_compute_as_the_bodies(
    name: str, shared_folder: Path, emulated_operators: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled for the emulation, inside ONNX Runtime. Halves may be rounded otherwise."""
    shape, variant, options = OWN_KERNELS[name]
    folder = bundles.named(shared_folder, shape, variant, **options)[1]
    monkeypatch.setattr(onnxruntime, "fuse", inlined)
    exact = logits(folder, "exact")
    made: list[str] = []

    def rewritten(model: Any) -> Any:
        model = with_own_kernels(model)
        made.extend(node.op_type for node in model.graph.node if node.domain == DOMAIN)
        sums = {node.output[0] for node in model.graph.node if node.op_type == "Add"}
        norms = [node for node in model.graph.node if node.op_type == "RMSNorm"]
        assert not sums & {node.input[0] for node in norms}
        return inlined(model)

    monkeypatch.setattr(onnxruntime, "fuse", rewritten)
    with_operators(monkeypatch, emulated_operators)
    assert relative_error(logits(folder, "exact"), exact) < (5e-3 if options else 1e-5)
    assert set(made) == {"RMSNorm", "ResidualNorm", "SwiGLU", "Rotation"}
    layers = Bundle.open(folder).manifest.model.layers
    assert made.count("ResidualNorm") == 2 * layers
    assert made.count("Rotation") == 2 * layers


@pytest.mark.parametrize("name", ["int8, tied", "offsets", "float16, int4"])
def test_a_gpu_gets_graphs_without_dequantization(
    name: str, shared_folder: Path, emulated_operators: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And with operators that have kernels."""
    bundle = Bundle.open(exported(shared_folder, name))
    backend, given = activated_on_gpu(bundle, monkeypatch)
    backend.load_hidden()
    assert len(given) == len(bundle.manifest.dense_graphs()) + 1
    # The head, and what is before the hidden states.
    half = "float16" in name
    assert backend.integer_product == ("IntegerProduct" if half else "MatMulNBits")
    assert products_of(given) == {backend.integer_product: 7 * bundle.manifest.model.layers + 1 + 4}
    for model in given:
        assert "DequantizeLinear" not in {node.op_type for node in model.graph.node}
        kernels = {operator.name for operator in DENSE_OPERATORS} | {"IntegerProduct"}
        assert {node.op_type for node in model.graph.node if node.domain == DOMAIN} <= kernels
        assert not model.functions


# Where IntegerProduct does not work


@dataclass(frozen=True)
class Wrong:
    """A session with one wrong number in an output of so many rows."""

    session: Any
    rows: int
    output: int

    def run(self, names: None, inputs: dict[str, Any]) -> list[Any]:
        outputs: list[Any] = self.session.run(names, inputs)
        if len(inputs["x"]) == self.rows:
            outputs[self.output][-1, -1] += 0.5
        return outputs


def refused(session: Any) -> Any:
    raise RuntimeError("NOT_IMPLEMENTED : CreateOp\nand more")


def failing_in_a_run(session: Any) -> Any:
    return SimpleNamespace(run=Mock(side_effect=RuntimeError("InvokeOp failed")))


WRONG = [
    (partial(Wrong, rows=rows, output=output), f"{rows} rows times integers of {bits}")
    for rows in ROWS
    for output, bits in enumerate(WIDTHS)
]


@pytest.mark.parametrize(
    ("trial", "reason"), [(refused, "CreateOp"), (failing_in_a_run, "InvokeOp failed"), *WRONG]
)
def test_matmulnbits_takes_the_place_of_an_operator_whose_trial_fails(
    trial: Callable[[Any], Any],
    reason: str,
    shared_folder: Path,
    emulated_operators: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    bundle = Bundle.open(exported(shared_folder, "float16, int4"))
    backend, given = activated_on_gpu(bundle, monkeypatch, trial)
    assert backend.integer_product == "MatMulNBits"
    assert products_of(given) == {"MatMulNBits": 7 * bundle.manifest.model.layers + 1}
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert reason in record.message


def test_a_trial_raises_that_onnx_runtime_cannot_use_the_gpu() -> None:
    with pytest.raises(BackendError, match="no CUDA provider"):
        shortcoming(Mock(side_effect=BackendError("this ONNX Runtime has no CUDA provider")))
