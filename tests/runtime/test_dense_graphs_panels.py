"""Panels of integer weights, against the layout that products.h describes, element by element."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from h2o_runtime.dense_graphs.packed import pack, packed_bytes


def expected(q: NDArray[np.int8], bits: int, block: int) -> NDArray[np.uint8]:
    """By the definition: weight (n, k) has its place in a panel of 16 columns, and its half of a byte."""
    outputs, inputs = q.shape
    whole = np.zeros((-(-outputs // 16) * 16, inputs), np.int64)
    whole[:outputs] = q
    out = np.zeros((len(whole) // 16, inputs * 16 * bits // 8), np.uint8)
    for (n, k), value in np.ndenumerate(whole):
        panel, column = divmod(n, 16)
        if bits == 8:
            out[panel, (k // 4 * 16 + column) * 4 + k % 4] = value + 128
            continue
        high, inside = divmod(k % block, block // 2)
        four = (k // block * block // 2 + inside) // 4
        out[panel, (four * 16 + column) * 4 + k % 4] |= (value + 8) << (4 if high else 0)
    return out


@given(
    st.integers(1, 70),
    st.integers(1, 3),
    st.sampled_from([16, 32, 48]),
    st.sampled_from([4, 8]),
    st.booleans(),
    st.integers(0, 99),
)
def test_every_weight_has_its_place(
    outputs: int, blocks: int, block: int, bits: Literal[4, 8], transposed: bool, seed: int
) -> None:
    limit = 1 << (bits - 1)
    shape = (blocks * block, outputs) if transposed else (outputs, blocks * block)
    q = np.random.default_rng(seed).integers(-limit, limit, shape).astype(np.int8)
    q = q.T if transposed else q
    np.testing.assert_array_equal(pack(q, bits, block), expected(q, bits, block))


Q = np.ones((16, 64), np.int8)


@pytest.mark.parametrize(
    ("q", "bits", "block", "nbytes", "words"),
    [
        (Q, 3, 32, 1024, "4 or 8 bits"),
        (Q, 8, 24, 1024, "blocks of 16 to 256"),
        (Q, 8, 48, 1024, "that divide K"),
        (Q, 8, 32, 1023, "bytes of whole panels"),
        (np.ones((32, 128), np.int8)[::2, ::2], 8, 32, 1024, "rows or columns"),
    ],
)
def test_sizes_that_no_product_takes_are_refused(
    q: NDArray[np.int8], bits: Any, block: int, nbytes: int, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        pack(q, bits, block, np.empty(nbytes, np.uint8))


def test_the_size_is_that_of_whole_panels() -> None:
    assert packed_bytes(np.ones((17, 32), np.int8), 4) == 2 * 16 * 32 // 2
