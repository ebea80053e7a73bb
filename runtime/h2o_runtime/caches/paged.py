"""Rows on pages: a table says where each page of the sequence lies in a pool that all layers have alike."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.attention.base import AttentionProvider
from h2o_runtime.caches.base import KVStore, Rows
from h2o_runtime.caches.contiguous import LayerRows
from h2o_runtime.caches.stored import Fresh, RowForm, StoredCache, StoredRows
from h2o_runtime.devices import Device, Tensor
from h2o_runtime.errors import ConfigError
from h2o_runtime.kv import KV
from h2o_runtime.model import ModelSpec
from h2o_runtime.options import option

MOST_PAGE_ROWS = 4096


@dataclass(frozen=True)
class Paged(StoredCache):
    """Pages are taken as the prompt grows, and given back. Read by the CPU's attention."""

    name: ClassVar[str] = "paged"
    title: ClassVar[str] = "on pages"
    latent: ClassVar[bool] = True

    page_rows: int = option(
        16,
        "Tokens of one page of the cache, a power of two.",
        label="Tokens of a page",
        symbol="page",
        flags=("--page-size",),
        least=16,
        numeric=False,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.page_rows & (self.page_rows - 1) or self.page_rows > MOST_PAGE_ROWS:
            raise ConfigError(
                f"page_rows must be a power of two up to {MOST_PAGE_ROWS}, but is {self.page_rows}",
                field="page_rows",
            )

    def new_store(
        self, model: ModelSpec, capacity: int, device: Device, provider: AttentionProvider
    ) -> KVStore:
        """Raises ConfigError on a GPU, whose kernels read rows in one piece."""
        if device.name != "cpu":
            raise ConfigError(
                "the cache paged is read by the CPU's attention only: choose --cache contiguous, or --device cpu",
                field="cache",
            )
        return PagedStore(model, self.form(model), Pages(capacity, self.page_rows), device, provider)

    def store_bytes(self, model: ModelSpec, context: int) -> int:
        pages = -(-context // self.page_rows)
        rows = pages * self.page_rows * model.layers * self.form(model).row_bytes
        return rows + Fresh.size(model, context) + pages * np.dtype(np.int32).itemsize


class Pages:
    """Which page of a pool each page of one sequence is.

    table  int32 [pages]: -1 where the sequence has none

    The lowest free page is taken, so that a sequence which grows alone lies in order.
    """

    def __init__(self, capacity: int, page_rows: int) -> None:
        self.page_rows = page_rows
        count = -(-capacity // page_rows)
        self.table: NDArray[np.int32] = np.full(count, -1, np.int32)
        self.used = 0
        self.free = list(range(count))  # a heap

    def reach(self, rows: int) -> None:
        """Have pages for the first `rows` rows."""
        while self.used * self.page_rows < rows:
            self.table[self.used] = heapq.heappop(self.free)
            self.used += 1

    def truncate(self, rows: int) -> None:
        """Give back those behind the first `rows` rows."""
        while (self.used - 1) * self.page_rows >= rows and self.used:
            self.used -= 1
            heapq.heappush(self.free, int(self.table[self.used]))
            self.table[self.used] = -1


class PagedStore(KVStore):
    """Every layer has a pool of as many rows, and one table serves all."""

    def __init__(
        self, model: ModelSpec, form: RowForm, pages: Pages, device: Device, provider: AttentionProvider
    ) -> None:
        self.pages = pages
        pool = len(pages.table) * pages.page_rows
        self.layers = [form.new(pool, device) for _ in range(model.layers)]
        step, fresh = Fresh(model, 1, device), Fresh(model, pool, device)
        self._other_bytes = Fresh.size(model, pool) + pages.table.nbytes
        self._open = [_Layer(rows, step, fresh, device, provider, pages) for rows in self.layers]

    def open(self, layer: int) -> _Layer:
        return self._open[layer]

    def truncate(self, rows: int) -> None:
        """Rows from `rows` on are needed no more."""
        self.pages.truncate(rows)

    @property
    def nbytes(self) -> int:
        return sum(rows.nbytes for rows in self.layers) + self._other_bytes


class _Layer(LayerRows):
    """Dense graphs write beside the pool; rows go to their pages as they are committed."""

    def __init__(
        self,
        rows: StoredRows,
        step: Fresh,
        fresh: Fresh,
        device: Device,
        provider: AttentionProvider,
        pages: Pages,
    ) -> None:
        super().__init__(rows, step, fresh, device, provider)
        self._pages = pages

    def commit(self, rows: Rows) -> None:
        self._pages.reach(rows.stop if rows.at is None else int(rows.at[0]) + 1)
        super().commit(rows)

    def restore(self, parts: dict[str, NDArray[Any]]) -> None:
        rows = len(parts["k"])
        self._pages.reach(rows)
        view = self.view(rows)
        at = view.places(np.arange(rows))
        for name, part in view.parts.items():
            part[at] = parts[name]

    def view(self, length: int | Tensor) -> KV:
        return self._rows.view(length, self._pages.table, self._pages.page_rows)
