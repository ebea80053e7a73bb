"""PackedMlp, a gated MLP of products of our own, in ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto
from tests.packed_matrices import BLOCK, RandomMatrix, node_model, packed, rows, session

K = 64
BIASES = ("gate_bias", "up_bias", "down_bias")


def mlp_model(
    inner: int, bits: int, threads: int, offsets: bool, given: str, changed: dict[str, Any] | None = None
) -> ModelProto:
    """One PackedMlp of the matrices that `mlp_matrices` gives."""
    constants: dict[str, NDArray[Any]] = {}
    for prefix, matrices in zip(("", "down_"), mlp_matrices(inner, bits, offsets), strict=True):
        made = packed(matrices, bits, offsets)
        constants |= {f"{prefix}{name}": array for name, array in made.items()}
    order = [f"{prefix}{name}" for prefix in ("", "down_") for name in ("weights", "scales", "offsets")]
    settings: dict[str, Any] = {"K": K, "inner": inner, "N": K, "block": BLOCK, "bits": bits, "parts": 1}
    settings |= {"epsilon": 0.5, "threads": threads, "gate": 0} | (changed or {})
    inputs = [
        "x",
        *(name if name in constants else "" for name in order),
        *(name if name in given.split() else "" for name in ("norm", "addend", *BIASES)),
    ]
    return node_model("PackedMlp", inputs, ["scratch", "y"], constants, **settings)


def mlp_matrices(inner: int, bits: int, offsets: bool) -> tuple[list[RandomMatrix], list[RandomMatrix]]:
    """Gate and up, and down."""
    draw = np.random.default_rng(3)
    sizes = ((inner, K), (inner, K), (K, inner))
    gate, up, down = (RandomMatrix.draw(draw, n, k, bits, offsets) for n, k in sizes)
    return [gate, up], [down]


@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize("rows_of_x", [1, 5, 200])
@pytest.mark.parametrize(("bits", "offsets"), [(8, False), (4, True), (32, False)])
def test_an_mlp_is_that_of_float64(bits: int, offsets: bool, rows_of_x: int, gelu: bool) -> None:
    """Few rows, whose columns threads share, and many, of which each thread takes some."""
    inner = 608  # more than is between the products at a time, and no multiple of that
    x, norm, addend = rows(rows_of_x, K), rows(K, seed=5), rows(rows_of_x, K, seed=6)
    model = mlp_model(inner, bits, 2, offsets, "x norm addend", {"gate": int(gelu)})
    found = session(model, threads=2).run(["y"], {"x": x, "norm": norm, "addend": addend})[0]
    (gate, up), (down,) = mlp_matrices(inner, bits, offsets)
    wide = x.astype(np.float64)
    normed = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 0.5) * norm
    g, u = normed @ gate.values.T.astype(np.float64), normed @ up.values.T.astype(np.float64)
    z = 2 * np.sqrt(2 / np.pi) * (g + 0.044715 * g**3) if gelu else g
    expected = addend + (g / (1 + np.exp(-z)) * u) @ down.values.T.astype(np.float64)
    # An activation of 8 bits is rounded by a step / √12 in the mean. A step is about 2.3 / 127 of the root mean
    # square of a block of normal numbers, which is 0.5 %, and twice that of their gated products, whose tails are
    # heavier.
    error = np.sqrt(np.mean((found - expected) ** 2) / np.mean((expected - addend) ** 2))
    assert error < (1e-6 if bits == 32 else 0.03)


@pytest.mark.parametrize("rows_of_x", [1, 5, 200])
def test_an_mlp_with_biases(rows_of_x: int) -> None:
    inner = 608
    biases = [rows(n, seed=7 + n) for n in (inner, inner, K)]
    x, addend = rows(rows_of_x, K), rows(rows_of_x, K, seed=6)
    model = mlp_model(inner, 32, 2, False, " ".join(("x", "addend", *BIASES)))
    inputs = {"x": x, "addend": addend, **dict(zip(BIASES, biases, strict=True))}
    found = session(model, threads=2).run(["y"], inputs)[0]
    (gate, up), (down,) = mlp_matrices(inner, 32, False)
    g, u = x @ gate.values.T.astype(np.float64) + biases[0], x @ up.values.T.astype(np.float64) + biases[1]
    expected = addend + (g / (1 + np.exp(-g)) * u) @ down.values.T.astype(np.float64) + biases[2]
    np.testing.assert_allclose(found, expected, atol=2e-6 * np.abs(expected).max())
    for missing in BIASES:
        some = {name: array for name, array in inputs.items() if name != missing}
        with pytest.raises(Exception, match="of gate, up and down or of none"):
            session(mlp_model(inner, 32, 2, False, " ".join(some))).run(["y"], some)


def test_a_row_of_an_mlp_is_the_same_among_any_others() -> None:
    x = rows(300, K)
    alone = session(mlp_model(608, 8, 1, False, "x"))
    for threads in (1, 3):
        several = session(mlp_model(608, 8, threads, False, "x"), threads)
        together = several.run(["y"], {"x": x.reshape(3, 100, K)})[0].reshape(300, K)
        for row in (0, 7, 299):
            np.testing.assert_array_equal(together[row], alone.run(["y"], {"x": x[row : row + 1]})[0][0])
    assert alone.run(["y"], {"x": x[:0]})[0].shape == (0, K)


@pytest.mark.parametrize(
    ("given", "arrays", "words"),
    [
        ("x", {"x": rows(2, K + 1)}, "last dimension of x"),
        ("x addend", {"x": rows(2, K), "addend": rows(1, K)}, "addend must be as large"),
        ("x norm", {"x": rows(2, K), "norm": rows(2, K)}, "norm must have one number"),
    ],
)
def test_an_mlp_refuses_sizes_that_disagree(given: str, arrays: dict[str, Any], words: str) -> None:
    with pytest.raises(Exception, match=words):
        session(mlp_model(64, 8, 1, False, given)).run(["y"], arrays)


@pytest.mark.parametrize("changed", [{"bits": 3}, {"block": 24}, {"inner": 48}, {"threads": 0}, {"gate": 3}])
def test_an_mlp_refuses_settings_that_no_kernel_takes(changed: dict[str, Any]) -> None:
    with pytest.raises(Exception, match=r"threads must be one|no kernel (takes|has)"):
        session(mlp_model(64, 8, 1, False, "x", changed))
