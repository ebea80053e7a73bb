"""The function bodies with values of another size than keys, or that are a part of them, against float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.runtime.latent_cases import FULL_SIZE, TINY, Sizes, check_all

from h2o_runtime.attention import AttentionShape
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.kv import KV
from h2o_runtime.providers.functions import FunctionProvider


@pytest.mark.parametrize("sizes", [*TINY, FULL_SIZE[0]], ids=str)
def test_every_operator(tiny_bundle: Path, sizes: Sizes) -> None:
    provider = FunctionProvider(Bundle.open(tiny_bundle), threads=1)
    provider.activate(sizes.shape)
    check_all(sizes, provider)


def test_values_are_as_wide_as_keys_where_nothing_is_said() -> None:
    assert AttentionShape(2, 1, 64, 0.1, np.dtype(np.float32)).value_size == 64
    assert AttentionShape(2, 1, 64, 0.1, np.dtype(np.float32), 32).value_size == 32


def test_values_in_keys_are_stored_once() -> None:
    k, scales = np.zeros((4, 1, 8), np.int8), np.zeros((4, 1), np.float32)
    kv = KV(k, k, 4, scales=(scales, scales))
    assert kv.latent
    assert list(kv.tensors) == ["k", "k_scales"]
    assert list(KV(k, k.copy(), 4).tensors) == ["k", "v"]
