"""Scratch of every score rule's state: the partial softmaxes of a logical batch."""

from __future__ import annotations

import numpy as np

from h2o_runtime.attention.provider import PartialSoftmax
from h2o_runtime.devices import Device, Tensor


class PartialScratch:
    """m and l for the rows of one launch of Phase 1."""

    def __init__(self, rows: int, query_heads: int, device: Device) -> None:
        self.device = device
        self._m, self._l = (device.zeros((rows, query_heads), np.float32) for _ in range(2))

    def partial(self, o: Tensor) -> PartialSoftmax:
        """State of a logical batch: o is the layer's output itself, m and l are scratch. o [n, Hq, d].

        The scratch grows once if a later prompt has a larger batch size.
        """
        if len(o) > len(self._m):
            self._m, self._l = (self.device.zeros((len(o), o.shape[1]), np.float32) for _ in range(2))
        return PartialSoftmax(o, self._m[: len(o)], self._l[: len(o)])
