"""What attention kernels read of one layer's cache."""

from __future__ import annotations

from dataclasses import dataclass, replace

from h2o_runtime.devices import Tensor


@dataclass(frozen=True)
class KV:
    """Keys and values of one layer, by row.

    k, v     [rows, Hkv, d]; where values are a part of the keys, v looks into k
    length   rows in use; an int64 [1] on the device where a recorded step reads it there
    pages    int32: row i lies at pages[i // page_rows] * page_rows + i % page_rows; None: at i
    scales   of quantized keys and values
    seen     float32 [rows, Hkv], where a step's attention is to leave each row's probability, summed over the query
             heads that share its key; None: nobody asks

    A row is the place of a token in what is kept. Which position it had in the text, the session knows.
    """

    k: Tensor
    v: Tensor
    length: int | Tensor
    pages: Tensor | None = None
    page_rows: int = 0
    scales: tuple[Tensor, Tensor] | None = None
    seen: Tensor | None = None

    def as_they_lie(self) -> tuple[Tensor, Tensor]:
        """k and v for who reads row i at i, and floats. Raises ValueError where there are pages or scales."""
        if self.pages is not None or self.scales is not None:
            raise ValueError("this attention provider reads caches without pages and scales only")
        return self.k, self.v

    def upto(self, length: int) -> KV:
        """The first `length` rows."""
        return replace(self, length=length)
