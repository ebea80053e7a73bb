"""Moving single rows and scores in the host's memory, for all providers that work there."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.attention.base import AttentionProvider
from h2o_runtime.devices import Tensor
from h2o_runtime.kv import KV


class HostRows:
    """Part of a provider: see `AttentionProvider` for what its methods do."""

    def cache_append(self, k: NDArray[Any], v: NDArray[Any], at: NDArray[np.int64], kv: KV) -> None:
        k_cache, v_cache = kv.as_they_lie()
        k_cache[int(at[0])], v_cache[int(at[0])] = k[0], v[0]

    def scored_attention(self: AttentionProvider, q: Tensor, kv: KV, o: Tensor) -> None:
        assert kv.seen is not None
        self.cached_attention(q, kv, o)
        nothing = np.empty((kv.seen.shape[1], 0), np.int32)
        length = int(kv.length)
        self.candidate_score(q, kv.k[:length], kv, nothing, nothing.view(np.float32), kv.seen[:length])

    def gather_scores(self, score: NDArray[Any], rows: NDArray[Any], out: NDArray[Any]) -> None:
        out[:] = score[rows.T, np.arange(len(rows))].T

    def scatter_scores(
        self, score: NDArray[Any], rows: NDArray[Any], values: NDArray[Any], add: bool
    ) -> None:
        chosen = (rows.T, np.arange(len(rows)))
        if add:
            score[chosen] += values.T
        else:
            score[chosen] = values.T
