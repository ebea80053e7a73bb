"""PackedExperts, a mixture of experts of products of our own, in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto
from tests.packed_matrices import BLOCK, RandomMatrix, node_model, packed, rows, session

K, INNER, N, EXPERTS = 64, 160, 40, 7  # inner columns are more than one step, and no multiple of it

CLAMPED = {"gate": 2, "limit": 0.75, "gain": 1.7}
BIASES = {"gate_bias": INNER, "up_bias": INNER, "down_bias": N}

Expert = tuple[RandomMatrix, RandomMatrix, RandomMatrix]  # gate, up, down


@cache
def experts_of(bits: int, offsets: bool) -> list[Expert]:
    draw = np.random.default_rng(3)
    sizes = ((INNER, K), (INNER, K), (N, INNER))
    made = [[RandomMatrix.draw(draw, n, k, bits, offsets) for n, k in sizes] for _ in range(EXPERTS)]
    return [(gate, up, down) for gate, up, down in made]


def biases_of(expert: int) -> list[NDArray[np.float32]]:
    return [rows(n, seed=10 * expert + i) for i, n in enumerate(BIASES.values())]


@cache
def mixture(
    bits: int = 8,
    offsets: bool = False,
    threads: int = 1,
    addend: bool = False,
    biased: bool = False,
    **changed: float,
) -> onnxruntime.InferenceSession:
    """One PackedExperts."""
    constants: dict[str, NDArray[Any]] = {}
    for expert, (gate, up, down) in enumerate(experts_of(bits, offsets)):
        for part, matrices in (("gate_up", [gate, up]), ("down", [down])):
            made = packed(matrices, bits, offsets)
            constants |= {f"{expert}/{part}/{name}": array for name, array in made.items()}
        if biased:
            named = zip(BIASES, biases_of(expert), strict=True)
            constants |= {f"{expert}/{name}": array for name, array in named}
    sizes = {
        "K": K,
        "inner": INNER,
        "N": N,
        "bits": bits,
        "parts": 1,
        "block": BLOCK if bits < 16 else 0,
        "gate": 0,
    }
    model = node_model(
        "PackedExperts",
        ["x", "chosen", "shares", "addend" if addend else "", *constants],
        ["order", "scratch", "y"],
        constants,
        {"chosen": TensorProto.INT64},
        **{**sizes, "experts": EXPERTS, "threads": threads, "biased": int(biased), **changed},
    )
    return session(model, threads)


def routed(n: int, slots: int, seed: int = 1) -> dict[str, NDArray[Any]]:
    """Rows, with different experts each."""
    draw = np.random.default_rng(seed)
    chosen = np.array([draw.permutation(EXPERTS)[:slots] for _ in range(n)], np.int64).reshape(n, slots)
    return {"x": rows(n, K, seed=seed), "chosen": chosen, "shares": draw.random((n, slots), np.float32)}


def run(of: onnxruntime.InferenceSession, inputs: dict[str, NDArray[Any]]) -> NDArray[np.float32]:
    y: NDArray[np.float32] = of.run(["y"], inputs)[0]
    return y


def expected(inputs: dict[str, NDArray[Any]], experts: Sequence[Expert]) -> NDArray[np.float64]:
    """One row and slot after the other."""
    y = np.zeros((len(inputs["x"]), N))
    for row, (x, chosen, shares) in enumerate(
        zip(inputs["x"].astype(np.float64), inputs["chosen"], inputs["shares"], strict=True)
    ):
        for expert, share in zip(chosen, shares, strict=True):
            gate, up, down = (one.values.astype(np.float64) for one in experts[expert])
            opened = gate @ x
            y[row] += share * (down @ (opened / (1 + np.exp(-opened)) * (up @ x)))
    return y


@pytest.mark.parametrize("n", [1, 6, 120])
@pytest.mark.parametrize(("bits", "offsets"), [(8, False), (4, True), (16, False), (32, False)])
def test_a_mixture_is_that_of_float64(bits: int, offsets: bool, n: int) -> None:
    """Few rows, whose columns threads share, and many, of which each thread takes some."""
    inputs = routed(n, 3) | {"addend": rows(n, N, seed=6)}
    found = run(mixture(bits, offsets, threads=2, addend=True), inputs)
    wanted = expected(inputs, experts_of(bits, offsets))
    error = np.sqrt(np.mean((found - inputs["addend"] - wanted) ** 2) / np.mean(wanted**2))
    # As in test_dense_graphs_mlp.py: two factors of bfloat16 are each rounded by 2⁻⁹ / √3, in two products.
    assert error < {32: 1e-6, 16: 0.01}.get(bits, 0.03)


@pytest.mark.parametrize("n", [1, 120])
def test_a_clamped_gate_and_biases(n: int) -> None:
    """As gpt-oss has them."""
    inputs = routed(n, 2) | {"addend": rows(n, N, seed=6)}
    found = run(mixture(32, threads=2, addend=True, biased=True, **CLAMPED), inputs)
    wanted = inputs["addend"].astype(np.float64)
    for row, chosen in enumerate(inputs["chosen"]):
        for expert, share in zip(chosen, inputs["shares"][row], strict=True):
            x, biases = inputs["x"][row].astype(np.float64), biases_of(expert)
            gate, up, down = (one.values.astype(np.float64) for one in experts_of(32, False)[expert])
            g = np.minimum(gate @ x + biases[0], CLAMPED["limit"])
            u = np.clip(up @ x + biases[1], -CLAMPED["limit"], CLAMPED["limit"])
            inner = g / (1 + np.exp(-CLAMPED["gain"] * g)) * (u + 1)
            wanted[row] += share * (down @ inner + biases[2])
    np.testing.assert_allclose(found, wanted, atol=1e-5)


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_any_routing(data: st.DataObject) -> None:
    """Experts that no row chose, one that all chose, a row that chose one twice: each row as it is alone."""
    n, slots = data.draw(st.integers(0, 12)), data.draw(st.integers(1, 4))
    lists = st.lists(st.integers(0, EXPERTS - 1), min_size=n * slots, max_size=n * slots)
    chosen = np.array(data.draw(lists), np.int64).reshape(n, slots)
    repeats = data.draw(st.sampled_from([1, 60]))
    inputs = {"x": rows(n, K), "chosen": chosen, "shares": rows(n, slots, seed=2)}
    many = {name: np.tile(array, (repeats, 1)) for name, array in inputs.items()}
    found = run(mixture(32, threads=data.draw(st.sampled_from([1, 3]))), many)
    wanted = np.tile(expected(inputs, experts_of(32, False)), (repeats, 1))
    np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize("bits", [8, 32])
def test_a_row_is_the_same_among_any_others(bits: int) -> None:
    inputs = routed(500, 3)
    inputs["chosen"][100:400] = 5  # which cuts this expert's rows into units
    for threads in (3, 64):
        together = run(mixture(bits, threads=threads), inputs)
        for row in (0, 7, 250, 499):
            alone = run(mixture(bits), {name: array[row : row + 1] for name, array in inputs.items()})
            np.testing.assert_array_equal(together[row], alone[0])


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"x": rows(2, K + 1)}, "x must have two dimensions"),
        ({"x": rows(2, 1, K)}, "x must have two dimensions"),
        ({"chosen": np.zeros((3, 2), np.int64)}, "each row of x must have a row of chosen experts"),
        ({"chosen": np.full((2, 2), EXPERTS, np.int64)}, "an expert that is not there"),
        ({"chosen": np.full((2, 2), -1, np.int64)}, "an expert that is not there"),
        ({"shares": rows(2, 3)}, "each chosen expert must have one share"),
        ({"addend": rows(1, N)}, "addend must be as large"),
    ],
)
def test_inputs_that_disagree_are_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(Exception, match=words):
        run(mixture(addend=True), routed(2, 2) | {"addend": rows(2, N)} | changed)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"bits": 3}, "no kernel takes"),
        ({"gate": 3}, "a gate that no kernel has"),
        ({"gate": 2, "gain": 1.0}, "limit"),
        ({"threads": 0}, "experts and threads must be one at least"),
        ({"experts": 0}, "experts and threads must be one at least"),
        ({"experts": EXPERTS - 1}, "every expert must have the same arrays"),
        ({"N": N + 16}, "weights are not as long"),
    ],
)
def test_settings_that_no_kernel_takes_are_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(Exception, match=words):
        run(mixture(**changed), routed(2, 2))
