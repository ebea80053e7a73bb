"""Moving single rows and scores in the host's memory, for all providers that work there."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.kv import KV


class HostRows:
    """Part of a provider: see `AttentionProvider` for what its methods do."""

    def cache_append(self, k: NDArray[Any], v: NDArray[Any], at: NDArray[np.int64], kv: KV) -> None:
        k_cache, v_cache = kv.as_they_lie()
        k_cache[int(at[0])], v_cache[int(at[0])] = k[0], v[0]

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
