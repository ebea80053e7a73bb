"""The function bodies with values of another size than keys, or that are a part of them, against float64."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.runtime.latent_cases import FULL_SIZE, TINY, Sizes, check_all

from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.providers.functions import FunctionProvider


@pytest.mark.parametrize("sizes", [*TINY, FULL_SIZE[0]], ids=str)
def test_every_operator(tiny_bundle: Path, sizes: Sizes) -> None:
    provider = FunctionProvider(Bundle.open(tiny_bundle), threads=1)
    provider.activate(sizes.shape)
    check_all(sizes, provider)
