"""What attention kernels read of one layer's cache."""

from __future__ import annotations

from dataclasses import dataclass, replace

from h2o_runtime.devices import Tensor


@dataclass(frozen=True)
class KV:
    """Keys and values of one layer, by row.

    k, v     [rows, Hkv, d] float32, float16 or int8; where values are a part of the keys, v looks into k
    length   rows in use; an int64 [1] on the device where a recorded step reads it there
    pages    int32: row i lies at pages[i // page_rows] * page_rows + i % page_rows; None: at i
    scales   [rows, Hkv] float32 of keys and of values, where they are int8: a number is the integer times it

    A row is the place of a token in what is kept. Which position it had in the text, the session knows.
    """

    k: Tensor
    v: Tensor
    length: int | Tensor
    pages: Tensor | None = None
    page_rows: int = 0
    scales: tuple[Tensor, Tensor] | None = None

    def kept(self, rows: int) -> dict[str, Tensor]:
        """The first rows as they are stored, by name. Raises ValueError where there are pages."""
        if self.pages is not None:
            raise ValueError("rows on pages are not in one piece")
        parts = {"k": self.k, "v": self.v}
        if self.scales is not None:
            parts |= dict(zip(("k_scales", "v_scales"), self.scales, strict=True))
        return {name: part[:rows] for name, part in parts.items()}

    def upto(self, length: int) -> KV:
        """The first `length` rows."""
        return replace(self, length=length)
