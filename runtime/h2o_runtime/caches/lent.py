"""Layers without keys of their own, which read the rows of an earlier layer (Gemma 4; Brandon et al., 2024)."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from h2o_runtime.caches.cache import LayerStore, PresentLayer, Rows
from h2o_runtime.devices import Tensor
from h2o_runtime.kv import KV


class LentRows(PresentLayer):
    """One such layer: `source` has all rows of a prompt, and a step's row, when this layer is opened."""

    nbytes = 0

    def __init__(self, source: LayerStore) -> None:
        self._source = source

    def target(self, rows: Rows) -> dict[str, Tensor]:
        return {}

    def fresh(self, rows: Rows) -> dict[str, Tensor]:
        return self._source.fresh(rows)

    def commit(self, rows: Rows) -> None:
        pass

    def stored_rows(self, first: int, length: int) -> dict[str, Tensor]:
        return {}

    def stored_kinds(self, first: int, length: int) -> dict[str, tuple[tuple[int, ...], Any]]:
        return {}

    def restore(self, arrays: dict[str, NDArray[Any]], first: int) -> None:
        pass

    def view(self, length: int | Tensor) -> KV:
        return self._source.view(length)

    def fetch(self, pages: Tensor, page_rows: int) -> None:
        self._source.fetch(pages, page_rows)
