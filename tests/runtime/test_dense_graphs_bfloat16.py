"""Dense products in bfloat16: their error against float64, which rows decide it, where they are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import helper
from tests import bundles
from tests.packed_matrices import node_model, session
from tests.packed_matrices import rows as normal

from h2o_plugins import load_cpu_kernels
from h2o_runtime import Generator
from h2o_runtime.backends import select
from h2o_runtime.backends.select import check_dense_precision, make_backend
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.dense_graphs.matrices import ROUTER
from h2o_runtime.dense_graphs.native import is_fast, multiply_natively
from h2o_runtime.dense_graphs.packed import pack_bfloat16
from h2o_runtime.dense_graphs.packed_nodes import DOMAIN, PRODUCT
from h2o_runtime.errors import ConfigError

SHAPE = "llama-g2-d64-llama3"
ROUNDED = 2.0**-7 + 2.0**-16  # of the sum of a product's magnitudes: both factors are rounded to 8 bits

ROUNDS_ROWS = load_cpu_kernels().products_multiply_bfloat16()  # or else multiplies them as floats

fast_here = pytest.mark.skipif(not is_fast(), reason="this CPU has no instructions for our products")


def rounded(x: NDArray[np.float32]) -> NDArray[np.float64]:
    """To bfloat16, by arithmetic on float64 alone."""
    fraction, exponent = np.frexp(x.astype(np.float64))
    return np.ldexp(np.round(fraction * 256), exponent - 8)


def product(w: NDArray[np.float32], threads: int = 1, *optional: str) -> Any:
    """A session of one PackedProduct with the matrix w [N, K]."""
    names = [name if name in optional else "" for name in ("up", "norm", "addend")]
    sizes = {"K": w.shape[1], "N": [len(w)], "heads": [0], "block": 0, "bits": 16, "parts": 1}
    weights = {"weights": pack_bfloat16(w).reshape(-1).view(np.uint8)}
    inputs = ["x", "weights", "", "", *names]
    model = node_model(PRODUCT, inputs, ["scratch", "y"], weights, rotated=0, epsilon=0.25, gate=0, **sizes)
    return session(model, threads)


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=16, max_size=16))
def test_weights_become_the_nearest_in_pairs(numbers: list[float]) -> None:
    w = np.array([numbers], np.float32)
    packed = pack_bfloat16(w)
    assert packed.shape == (1, 8, 16, 2)
    found = (packed[0, :, 0].reshape(-1).astype(np.uint32) << 16).view(np.float32)
    large = np.abs(w[0]) > 3.3e38  # becomes infinity
    normal = ~large & (np.abs(w[0]) > 2e-38)
    np.testing.assert_array_equal(found[normal], rounded(w[0])[normal])
    assert not packed[0, :, 1:].any()


@settings(max_examples=9, deadline=None)
@given(st.integers(1, 40), st.sampled_from([16, 48, 272, 2048]), st.integers(1, 70), st.integers(0, 99))
def test_a_product_is_that_of_rounded_factors(n: int, k: int, columns: int, seed: int) -> None:
    x, w = normal(n, k, seed=seed), normal(columns, k, seed=seed + 1)
    y = product(w).run(None, {"x": x})[0].astype(np.float64)
    magnitudes = np.abs(x).astype(np.float64) @ np.abs(w).T.astype(np.float64)
    added = k * 2.0**-23  # float32 sums
    factor = rounded(x) if ROUNDS_ROWS else x.astype(np.float64)
    assert (np.abs(y - factor @ rounded(w).T) <= added * magnitudes).all()
    assert (np.abs(y - x.astype(np.float64) @ w.T) <= (ROUNDED + added) * magnitudes).all()


def test_a_row_depends_on_no_other_and_on_no_thread() -> None:
    x, w = normal(300, 576), normal(1000, 576, seed=1)
    whole = product(w, 3).run(None, {"x": x})[0]
    alone = product(w)
    for first, last in ((0, 1), (7, 9), (20, 35), (0, 100), (299, 300)):
        np.testing.assert_array_equal(alone.run(None, {"x": x[first:last]})[0], whole[first:last])


def test_norm_gate_and_addend_are_float32() -> None:
    x, up, w = normal(5, 64), normal(5, 64, seed=2), normal(40, 64, seed=1)
    norm, addend = normal(64, seed=3), normal(5, 40, seed=4)
    wide = x.astype(np.float64)
    normed = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 0.25) * norm
    gated = wide / (1 + np.exp(-wide)) * up
    for name, made, array in (("norm", normed, norm), ("up", gated, up)):
        y = product(w, 1, name, "addend").run(None, {"x": x, name: array, "addend": addend})[0]
        magnitudes = np.abs(made) @ np.abs(w).T.astype(np.float64)
        assert (np.abs(y - addend - made @ w.T) <= (ROUNDED + 1e-5) * magnitudes).all()


def test_what_is_not_finite_stays_in_its_row() -> None:
    x, w = normal(4, 64), normal(20, 64, seed=1)
    node = product(w)
    before = node.run(None, {"x": x})[0]
    for odd in (np.nan, np.inf, -np.inf):
        changed = x.copy()
        changed[1, 40] = odd
        y = node.run(None, {"x": changed})[0]
        assert not np.isfinite(y[1]).any()
        np.testing.assert_array_equal(np.delete(y, 1, axis=0), np.delete(before, 1, axis=0))


def test_routers_stay_float32(shared_folder: Path) -> None:
    folder = bundles.named(shared_folder, SHAPE)[1]
    path = folder / "onnx" / "dense_01.onnx"
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        if tensor.name == "after.o_proj.weight":
            old, tensor.name = tensor.name, f"after{ROUTER}"
    for node in model.graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = f"after{ROUTER}" if name == old else name
    made, _ = multiply_natively(model, path, 1, precision="bfloat16")
    bits = [helper.get_node_attr_value(node, "bits") for node in made.graph.node if node.domain == DOMAIN]
    assert sorted(bits) == [16, 16, 32]


@fast_here
def test_a_model_in_bfloat16_is_near_and_its_steps_are_its_prompts(shared_folder: Path) -> None:
    folder = bundles.named(shared_folder, SHAPE)[1]
    tokens = bundles.random_ids(40)
    results = {}
    for precision in ("float32", "bfloat16"):
        with Generator.load(
            folder, context=64, threads=2, device="cpu", dense_precision=precision
        ) as generator:
            first = np.array(generator.prefill(tokens))
            steps = [np.array(generator.decode(token)) for token in (3, 4)]
            assert generator.loaded.forward.graph(generator.session) is not None
        results[precision] = np.array([first, *steps])
    error = np.linalg.norm(results["bfloat16"] - results["float32"]) / np.linalg.norm(results["float32"])
    assert 1e-4 < error < 0.02


@fast_here
def test_packed_files_of_both_precisions_are_apart(shared_folder: Path, tmp_path: Path) -> None:
    folder = bundles.named(shared_folder, SHAPE)[1]
    logits = []
    for precision in ("bfloat16", "float32", "bfloat16"):
        with Generator.load(
            folder, context=16, device="cpu", packed_weights=tmp_path, dense_precision=precision
        ) as generator:
            logits.append(np.array(generator.prefill([1, 2, 3])))
    np.testing.assert_array_equal(logits[0], logits[2])
    assert (logits[0] != logits[1]).any()
    assert len(list(tmp_path.iterdir())) == 2 * len(Bundle.open(folder).manifest.dense_graphs())


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"backend": "tensorrt"}, "need ONNX Runtime on a CPU"),
        ({"on_cpu": False}, "need ONNX Runtime on a CPU"),
        ({"model": Mock(quantized=True, dtype="float32")}, "need float weights"),
        ({"dense_form": "exact"}, "need `dense_form=native`"),
        ({"precision": "float8"}, "must be one of auto, float32, bfloat16"),
    ],
)
def test_it_is_refused_where_it_would_do_nothing(
    changed: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(select, "can_widen", lambda: False)
    good = {"precision": "bfloat16", "dense_form": "auto", "backend": "onnxruntime", "on_cpu": True}
    model = Mock(quantized=False, dtype="float32")
    with pytest.raises(ConfigError, match=words) as caught:
        check_dense_precision(**{**good, "model": model, **changed})  # type: ignore[arg-type]
    assert caught.value.field == "dense_precision"


def test_a_processor_without_it_is_told(shared_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "is_fast", lambda: False)
    bundle = Bundle.open(bundles.named(shared_folder, SHAPE)[1])
    with pytest.raises(ConfigError, match="need products of our own, on a processor with"):
        make_backend("onnxruntime", bundle, Mock(memory="cpu"), 1, 64, dense_precision="bfloat16")
