"""Dense graphs as ONNX Runtime's CUDA provider runs them, by the same nodes of its CPU provider."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

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
from h2o_runtime.dense_graphs.cuda_provider import rotated_by_one_node, without_dequantization
from h2o_runtime.ort import session
from h2o_runtime.policies.prefill import Full

TIED, UNTIED = "llama-g2-d64-llama3", "qwen2-g4-d32"
FULL = Full()
BUNDLES = {  # the error that rounding to the bundle's floats explains
    "int8, tied": (TIED, "-int8", {"weights": "int8"}, 1e-5),
    "int4": (UNTIED, "-int4", {"weights": "int4"}, 1e-5),
    "offsets": (UNTIED, "-int4+offset", {"weights": "int4+offset"}, 1e-5),
    "float16, int8": (TIED, "-half-int8", {"weights": "int8", "dtype": "float16"}, 5e-3),
    "float16, int4": (UNTIED, "-half-int4", {"weights": "int4", "dtype": "float16"}, 5e-3),
}


def exported(root: Path, name: str) -> Path:
    shape, variant, options, _ = BUNDLES[name]
    return bundles.named(root, shape, variant, **options)[1]


def inlined(model: Any) -> Any:
    """With the bodies of its functions, and nothing else changed."""
    return onnx.inliner.inline_local_functions(model)


def logits(folder: Path, form: Any) -> NDArray[np.float32]:
    """After a prompt and two steps."""
    with Generator.load(folder, context=64, threads=1, device="cpu", dense_form=form) as generator:
        found = [generator.prefill(bundles.random_ids(40), FULL).copy()]
        return np.array([*found, *(generator.decode(token).copy() for token in (3, 4))])


@pytest.mark.parametrize("name", BUNDLES)
def test_numbers_are_those_of_the_graph_as_it_is(
    name: str, shared_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = exported(shared_folder, name)
    exact = logits(folder, "exact")
    monkeypatch.setattr(onnxruntime, "multiply_integers", without_dequantization)
    assert relative_error(logits(folder, "blocks"), exact) < BUNDLES[name][3]


@pytest.mark.parametrize(
    ("shape", "variant", "options"), [(TIED, "-float16", {"dtype": "float16"}), (UNTIED, "", {})]
)
def test_a_rotation_of_one_node_rotates_as_its_body(
    shape: str, variant: str, options: Any, shared_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32, of halves too: these may be rounded otherwise once."""
    folder = bundles.named(shared_folder, shape, variant, **options)[1]

    def rewritten(model: Any) -> Any:
        model = rotated_by_one_node(model)
        turned = [node for node in model.graph.node if node.op_type in ("Rotation", "RotaryEmbedding")]
        assert {node.op_type for node in turned} <= {"RotaryEmbedding"}
        rotations.extend(turned)
        return model

    rotations: list[Any] = []
    monkeypatch.setattr(onnxruntime, "fuse", inlined)
    exact = logits(folder, "exact")
    monkeypatch.setattr(onnxruntime, "fuse", lambda model: inlined(rewritten(model)))
    assert relative_error(logits(folder, "exact"), exact) < (2e-3 if options else 1e-5)
    assert len(rotations) == 2 * Bundle.open(folder).manifest.model.layers  # queries and keys


@pytest.mark.parametrize("name", ["int8, tied", "offsets"])
def test_a_gpu_gets_graphs_without_dequantization(
    name: str, shared_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And with their functions, which ONNX Runtime replaces by their bodies."""
    given: list[Any] = []

    def open_session(model: bytes, *, beside: Path, **_: Any) -> Any:
        given.append(onnx.load_from_string(model))
        return session.open_session(model, threads=1, beside=beside)

    monkeypatch.setattr(onnxruntime, "open_session", open_session)
    bundle, gpu = Bundle.open(exported(shared_folder, name)), SimpleNamespace(memory="cuda")
    backend = OnnxRuntimeBackend(bundle, device=gpu)  # type: ignore[arg-type]
    backend.activate()
    backend.load_hidden()
    assert len(given) == len(bundle.manifest.dense_graphs()) + 1
    products = [node for model in given for node in model.graph.node if node.op_type == "MatMulNBits"]
    assert (
        len(products) == 7 * bundle.manifest.model.layers + 1 + 4
    )  # the head, and what is before the hidden states
    for model in given:
        assert "DequantizeLinear" not in {node.op_type for node in model.graph.node}
        assert {node.op_type for node in model.graph.node if node.domain == "h2o"} <= {
            f.name for f in model.functions
        }
