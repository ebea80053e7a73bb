"""Panels of integer weights: what is refused, and their size. Products show where each weight lies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from h2o_runtime.dense_graphs.packed import pack, packed_bytes

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
