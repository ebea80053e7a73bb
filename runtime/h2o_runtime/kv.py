"""The part of a layer's cache that attention kernels read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.devices import Tensor


@dataclass(frozen=True)
class KV:
    """Keys and values of one layer, by row.

    k, v     [rows, Hkv, d] and [rows, Hkv, dv], float32, float16 or int8. If v is k (the same object), a row's
    values
             are the first dv elements of its keys, and are not stored separately
    length   rows in use; an int64 [1] on the device if a recorded step reads it there
    pages    int32: row i is at pages[i // page_rows] * page_rows + i % page_rows; None: at i
    scales   [rows, Hkv] float32 of keys and of values, if they are int8: an element is the integer times its scale;
             if v is k, the same object twice
    seen     float32 [rows, Hkv], to which a step's attention writes each row's probability, summed over the query
             heads that share its key; None: not needed

    A row is the place of a token in the cache. The session knows the token's position in the text.
    """

    k: Tensor
    v: Tensor
    length: int | Tensor
    pages: Tensor | None = None
    page_rows: int = 0
    scales: tuple[Tensor, Tensor] | None = None
    seen: Tensor | None = None

    @property
    def latent(self) -> bool:
        """Whether values are stored in keys."""
        return self.v is self.k

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All tensors that store rows, by name."""
        names = ("k", "v", "k_scales", "v_scales")
        tensors = dict(zip(names, (self.k, self.v, *(self.scales or ())), strict=False))
        return {
            name: tensor for name, tensor in tensors.items() if not (self.latent and name.startswith("v"))
        }

    def places(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The places of the sequence's rows, on the host."""
        if self.pages is None:
            return rows
        first: NDArray[np.int64] = self.pages[rows // self.page_rows].astype(np.int64) * self.page_rows
        return first + rows % self.page_rows

    def stored_rows(self, rows: int) -> dict[str, Tensor]:
        """The first rows as they are stored, by name; copies if they are on pages, in host memory."""
        if self.pages is None:
            return {name: tensor[:rows] for name, tensor in self.tensors.items()}
        at = self.places(np.arange(rows))
        return {name: tensor[at] for name, tensor in self.tensors.items()}

    def cut(self, rows: int) -> KV:
        """A prompt's rows before `rows`, for kernels whose scratch memory is for all that are there."""
        assert isinstance(self.length, int), "that of a prompt is known"
        if self.pages is not None or len(self.k) <= rows:
            return self
        k = self.k[:rows]
        v = k if self.latent else self.v[:rows]
        scales = self.scales and (self.scales[0][:rows], self.scales[1][:rows])
        return KV(k, v, min(self.length, rows), scales=scales)

    def upto(self, length: int) -> KV:
        """The first `length` rows."""
        return replace(self, length=length)


@dataclass(frozen=True)
class StateView(KV):
    """Input of a layer with a state in place of rows: k and v are None.

    new     what its dense graph gave for the new tokens, by the outputs' names, [n, …]
    arrays  of the state by name, before the new tokens; the layer updates them to what they are after them
    saved   by number of new tokens: where to copy the arrays as they are after so many of them
    """

    new: Mapping[str, Tensor] = field(kw_only=True)
    arrays: Mapping[str, Tensor] = field(kw_only=True)
    saved: Mapping[int, Mapping[str, Tensor]] = field(default_factory=dict, kw_only=True)
