"""What h2o_plugins._cuda refuses, in words. The kernels' test program compares the operators with float64."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from tests.plugins.cuda.model import Model

from h2o_runtime.operators import CACHE_APPEND, CACHED_ATTENTION, SCATTER_SCORES


def test_what_the_kernels_refuse_is_a_value_error(emulated_cuda: ModuleType) -> None:
    sizes = {"query_heads": 4, "kv_heads": 2, "head_size": 64, "scale": 0.125, "half": False}
    for wrong in ({"query_heads": 3}, {"head_size": 584}, {"scale": 0.0}):
        with pytest.raises(ValueError, match="Kernels"):
            emulated_cuda.Kernels(**{**sizes, **wrong}, counters=0, integers=0)
    model = Model(emulated_cuda, 4, 2, 64, np.float32)
    k, v, at = model.put_empty(8, 2, 64), model.put_empty(8, 2, 64), model.put(np.zeros(1, np.int64))
    new, nowhere = model.put_empty(1, 2, 64), model.cuda.Array(0, (1, 2, 64), np.dtype(np.float32), None)
    with pytest.raises(ValueError, match="cache_append: an argument is out of range, or a null pointer"):
        model.run(CACHE_APPEND, model.cache(k, v, 8), k=nowhere, v=new, first=0, at=at)
    pages = emulated_cuda.KV(k, v, 8, model.put(np.zeros(2, np.int32)), 4)
    with pytest.raises(ValueError, match=r"cache_append: no kernel for .* pages or what rows are stored as"):
        model.run(CACHE_APPEND, pages, k=new, v=new, first=0, at=at)
    integers = model.put_empty(8, 2, 64, dtype=np.int8)
    with pytest.raises(ValueError, match="a cache of integers has scales"):
        model.cache(integers, integers, 8)
    with pytest.raises(ValueError, match=r"cache_append: k must have shape \(n = 1, Hkv = 2, d = 64\)"):
        model.run(CACHE_APPEND, model.cache(k, v, 8), k=new.reshape(1, 1, 128), v=new, first=0, at=at)
    q, long = model.put_empty(1, 4, 64), model.put_empty(512, 2, 64)
    call = {"q": q, "o": model.put_empty(1, 4, 64)}
    with pytest.raises(ValueError, match="cached_attention: the workspace is too small"):
        model.kernels.run(
            model.stream, "CachedAttention", model.cache(long, long, 9), call, lambda nbytes: (q.address, 1)
        )
    with pytest.raises(ValueError, match="scatter_scores: values is missing"):
        model.run(
            SCATTER_SCORES, memory=model.put(np.zeros((2, 4), np.int32)), score=model.put_empty(8, 2), add=0
        )
    with pytest.raises(ValueError, match="cached_attention has no argument colour"):
        model.run(CACHED_ATTENTION, model.cache(k, v, 8), **call, colour=1)
