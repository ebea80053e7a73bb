"""CUDA operators with values of another size than keys, or that are a part of them, against float64.

The emulation takes the GPU's place.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from tests.plugins.cuda.test_module_stored import OnHost
from tests.runtime.latent_cases import FULL_SIZE, TINY, Sizes, cached, check, check_all, fused

# Heads of eight halves start on 16 bytes, those of four do not.
WHOLE = [sizes for sizes in TINY if sizes.dtype == "float32" or sizes.dv % 8 == 0]
# One of each form and each way of voting is enough for a day: the emulation takes seconds for each.
DAILY = {TINY[1], TINY[5]}
HALF = [
    pytest.param(Sizes(20, 1, 576, 512, latent=True, dtype="float16"), marks=pytest.mark.nightly),
    Sizes(3, 1, 576, 512, latent=True, dtype="float16", form="int8"),
    pytest.param(Sizes(4, 4, 192, 128, dtype="float16"), marks=pytest.mark.nightly),
    pytest.param(
        Sizes(4, 4, 192, 128, score_heads=4, dtype="float16", form="int8"), marks=pytest.mark.nightly
    ),
    Sizes(8, 4, 64, 64, score_heads=2, dtype="float16"),
]


@pytest.mark.parametrize(
    "sizes",
    [pytest.param(sizes, marks=() if sizes in DAILY else pytest.mark.nightly) for sizes in WHOLE],
    ids=str,
)
def test_every_operator(emulated_cuda: ModuleType, sizes: Sizes) -> None:
    provider: Any = OnHost(sizes)
    check_all(sizes, provider)


@pytest.mark.parametrize(
    "sizes", [FULL_SIZE[0], pytest.param(FULL_SIZE[1], marks=pytest.mark.nightly)], ids=str
)
def test_full_size_in_float32(emulated_cuda: ModuleType, sizes: Sizes) -> None:
    provider: Any = OnHost(sizes)
    check(sizes, cached(sizes, provider, 1))
    check(sizes, fused(sizes, provider, n=5))


@pytest.mark.parametrize("sizes", HALF, ids=str)
def test_every_operator_in_float16(emulated_cuda: ModuleType, sizes: Sizes) -> None:
    """On tensor cores: 16 rows of queries that share a latent, more of them, and none full."""
    provider: Any = OnHost(sizes)
    check_all(sizes, provider)


def test_one_token_and_a_few_behind_latents(emulated_cuda: ModuleType) -> None:
    """A block of 16 rows, and several of 64, over parts of the keys; a key alone."""
    sizes = Sizes(16, 1, 576, 512, latent=True, dtype="float16")
    provider: Any = OnHost(sizes)
    for n, length in ((1, 1), (1, 300), (7, 150)):
        check(sizes, cached(sizes, provider, n, length))


def test_sizes_that_no_kernel_takes_are_refused(emulated_cuda: ModuleType) -> None:
    for sizes in (Sizes(4, 4, 24, 12, dtype="float16"), Sizes(4, 1, 584, 512), Sizes(4, 1, 576, 520)):
        with pytest.raises(ValueError, match="head_size at most 576 and value_size 512"):
            OnHost(sizes)
