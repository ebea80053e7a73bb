"""The operators of dense graphs of h2o_plugins._cuda under the emulation, against float64."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.plugins.cuda.model import Model

from h2o_runtime.dense_operators import CLAMPED_SWIGLU, GEGLU, RESIDUAL_NORM, RMS_NORM, ROTATION, SWIGLU
from h2o_runtime.operator_spec import Operator

Array = NDArray[Any]
EPSILON = float(np.float32(1e-5))
LIMIT, GAIN = 2.0, float(np.float32(1.702))
FLOAT32 = 2e-6  # of the largest number: exponentials, divisions and square roots are rounded a few times
UNIT = {np.float32: 2.0**-24, np.float16: 2.0**-11}

# Rows shorter than a warp's pieces, longer than a warp's, longer than a block's, and of odd sizes.
SIZES = [(3, 64), (9, 128), (2, 1160), (1, 4352), (3, 37), (1, 1301)]


def check(got: Array, exact: Array) -> None:
    """Rounded once, of an error as in float32 before."""
    error = np.abs(got.astype(np.float64) - exact)
    assert np.isfinite(got).all()
    allowed = FLOAT32 * np.abs(exact).max()
    if got.dtype == np.float16:
        allowed = allowed + 1.01 * UNIT[np.float16] * np.abs(exact) + 2.0**-25
    assert (error <= allowed).all(), error.max()


def model_of(cuda: ModuleType, dtype: Any) -> Model:
    return Model(cuda, 2, 1, 64, dtype)


def numbers(rng: np.random.Generator, dtype: Any, *shape: int) -> Array:
    return (2 * rng.standard_normal(shape)).astype(dtype)


def normed(x: Array, weight: Array) -> Array:
    x = x.astype(np.float64)
    y: Array = x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON) * weight.astype(np.float64)
    return y


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(("n", "size"), SIZES)
def test_norm_of_a_sum(emulated_cuda: ModuleType, dtype: Any, n: int, size: int) -> None:
    """The sum is rounded as the residual stream has it, and the norm is that of the rounded one."""
    model, rng = model_of(emulated_cuda, dtype), np.random.default_rng(size)
    x, residual = (numbers(rng, dtype, n, size) for _ in range(2))
    weight = numbers(rng, dtype, size)
    total, y = (model.put_empty(n, size, dtype=dtype) for _ in range(2))
    inputs = {"x": model.put(x), "residual": model.put(residual), "weight": model.put(weight)}
    model.run(RESIDUAL_NORM, **inputs, sum=total, y=y, epsilon=EPSILON)
    assert np.array_equal(model.get(total), x + residual)
    check(model.get(y), normed(x + residual, weight))


def silu(gate: Array, up: Array) -> Array:
    return gate / (1 + np.exp(-gate)) * up


def clamped(gate: Array, up: Array) -> Array:
    gate, up = np.minimum(gate, LIMIT), np.clip(up, -LIMIT, LIMIT)
    return gate / (1 + np.exp(-GAIN * gate)) * (up + 1)


def gelu(gate: Array, up: Array) -> Array:
    return gate / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))) * up


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(("n", "size"), [(5, 512), (3, 37)])
@pytest.mark.parametrize(
    ("operator", "reference", "attributes"),
    [(SWIGLU, silu, {}), (CLAMPED_SWIGLU, clamped, {"limit": LIMIT, "gain": GAIN}), (GEGLU, gelu, {})],
    ids=["SwiGLU", "ClampedSwiGLU", "GeGLU"],
)
def test_gate(
    emulated_cuda: ModuleType,
    dtype: Any,
    n: int,
    size: int,
    operator: Operator,
    reference: Callable[[Array, Array], Array],
    attributes: dict[str, float],
) -> None:
    model, rng = model_of(emulated_cuda, dtype), np.random.default_rng(size)
    gate, up = (3 * numbers(rng, dtype, n, size) for _ in range(2))
    gate[0, :2] = (-200, 200)  # beyond the exponential's range
    y = model.put_empty(n, size, dtype=dtype)
    model.run(operator, gate=model.put(gate), up=model.put(up), y=y, **attributes)
    check(model.get(y), reference(gate.astype(np.float64), up.astype(np.float64)))


@pytest.mark.parametrize(
    ("dtype", "heads", "size", "rotated"),
    [
        (np.float32, 2, 64, 64),
        (np.float32, 3, 20, 20),  # halves that are no whole pieces
        (np.float16, 5, 128, 128),
        (np.float16, 3, 24, 24),
        (np.float16, 3, 64, 32),  # a part of each head
        (np.float32, 2, 24, 18),
        (np.float16, 2, 40, 36),  # neither part is of whole pieces
    ],
)
def test_rotation(emulated_cuda: ModuleType, dtype: Any, heads: int, size: int, rotated: int) -> None:
    n, rng = 7, np.random.default_rng(size)
    model = Model(emulated_cuda, heads, heads, size, dtype)
    x = numbers(rng, dtype, n, heads, size)
    angles = rng.uniform(-50, 50, (n, rotated // 2))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    y = model.put_empty(n, heads, size, dtype=dtype)
    model.run(ROTATION, x=model.put(x), cos=model.put(cos), sin=model.put(sin), y=y)
    a, b, rest = np.split(x.astype(np.float64), [rotated // 2, rotated], axis=-1)
    c, s = cos[:, None].astype(np.float64), sin[:, None].astype(np.float64)
    check(model.get(y), np.concatenate([a * c - b * s, b * c + a * s, rest], axis=-1))


def test_a_rotation_of_other_sizes_is_refused(emulated_cuda: ModuleType) -> None:
    model = model_of(emulated_cuda, np.float32)
    x, table = model.put_empty(2, 2, 64), model.put_empty(2, 33)
    with pytest.raises(ValueError, match="rotation"):
        model.run(ROTATION, x=x, cos=table, sin=table, y=model.put_empty(2, 2, 64))


@pytest.mark.parametrize("begin", [0, 1])
def test_rows_that_begin_anywhere(emulated_cuda: ModuleType, begin: int) -> None:
    """Pieces of 16 bytes need such addresses; others are read one by one."""
    model, rng = model_of(emulated_cuda, np.float16), np.random.default_rng(1)
    x, weight = numbers(rng, np.float16, 2 + begin, 40), numbers(rng, np.float16, 40)
    whole = model.put(np.concatenate([np.zeros(begin, np.float16), x.ravel()]))
    rows = type(whole)(whole.address + 2 * begin, x.shape, whole.dtype, model.memories)
    y = model.put_empty(*x.shape, dtype=np.float16)
    model.run(RMS_NORM, x=rows, weight=model.put(weight), y=y, epsilon=EPSILON)
    check(model.get(y), normed(x, weight))
