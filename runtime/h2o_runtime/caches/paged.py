"""Rows on pages: a table gives the place of each page of a sequence in a pool; all layers use the same table.

A waiting sequence keeps its pages. A sequence that begins like it shares those pages until it writes to one.
So no row moves when sequences take turns.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.attention.provider import AttentionProvider
from h2o_runtime.caches.cache import KVStore, LentRows, RetainedRows, Rows
from h2o_runtime.caches.contiguous import LayerRows
from h2o_runtime.caches.stored import Fresh, StoredCache, StoredRows
from h2o_runtime.components.options import option
from h2o_runtime.devices import Device, Tensor
from h2o_runtime.errors import ConfigError
from h2o_runtime.kv import KV
from h2o_runtime.model_spec import ModelSpec

MOST_PAGE_ROWS = 4096


class PagePool:
    """Page p is the rows from p * page_rows on of every array.

    arrays  the arrays of the rows, each [pages * page_rows, …]
    counts  int32 [pages]: the number of sequences that use a page, including waiting ones. 0: it is free
    free    the free pages, as a heap: the lowest is allocated first, so that a single sequence is contiguous
    """

    def __init__(self, pages: int, page_rows: int, arrays: Sequence[NDArray[Any]]) -> None:
        self.page_rows = page_rows
        self.arrays = arrays
        self.counts: NDArray[np.int32] = np.zeros(pages, np.int32)
        self.free = list(range(pages))

    @property
    def page_bytes(self) -> int:
        return sum(array[: self.page_rows].nbytes for array in self.arrays)

    def take(self) -> int:
        assert self.free, "whoever drives sequences makes room before one grows"
        page = heapq.heappop(self.free)
        self.counts[page] = 1
        return page

    def share(self, pages: NDArray[np.int32]) -> None:
        """One more sequence uses these pages, each of them once."""
        self.counts[pages] += 1

    def give_back(self, pages: NDArray[np.int32]) -> None:
        """One sequence fewer uses them."""
        self.counts[pages] -= 1
        for page in pages[self.counts[pages] == 0]:
            heapq.heappush(self.free, int(page))

    def copy(self, source: int, target: int, rows: int) -> None:
        """The first `rows` rows of a page, in every array."""
        source, target = source * self.page_rows, target * self.page_rows
        for array in self.arrays:
            array[target : target + rows] = array[source : source + rows]


class PageTable:
    """The pages of the current sequence: row i lies at table[i // page_rows] * page_rows + i % page_rows.

    table  int32 [pages of the capacity]: -1 behind the first `used`
    """

    def __init__(self, pool: PagePool, capacity: int) -> None:
        self.pool = pool
        self.table: NDArray[np.int32] = np.full(-(-capacity // pool.page_rows), -1, np.int32)
        self.used = 0

    def reach(self, start: int, stop: int) -> None:
        """Rows start … stop - 1 are about to be written: provide pages for them that no other sequence uses.

        If a page must be copied, its rows before `start` are kept.
        """
        size, pool = self.pool.page_rows, self.pool
        for index in range(start // size, min(self.used, -(-stop // size))):
            if pool.counts[self.table[index]] > 1:
                self._own(index, max(start - index * size, 0))
        while self.used * size < stop:
            self.table[self.used] = pool.take()
            self.used += 1

    def missing(self, start: int, stop: int, waiting: bool = False) -> int:
        """How many pages `reach` would take. waiting: once `retain` was called for all rows."""
        size = self.pool.page_rows
        reached = self.table[start // size : min(self.used, -(-stop // size))]
        shared = len(reached) if waiting else int((self.pool.counts[reached] > 1).sum())
        return shared + max(-(-stop // size) - self.used, 0)

    def move_out(self) -> list[NDArray[Any]]:
        """Give all pages back → copies of them, one of every array of the pool."""
        pool, pages = self.pool, self.table[: self.used]
        copies = [array.reshape(-1, pool.page_rows, *array.shape[1:])[pages] for array in pool.arrays]
        self.truncate(0)
        return copies

    def move_in(self, copies: Sequence[NDArray[Any]]) -> None:
        """Have pages again, which hold these copies."""
        pool = self.pool
        self.reach(0, len(copies[0]) * pool.page_rows)
        for array, moved in zip(pool.arrays, copies, strict=True):
            array.reshape(-1, pool.page_rows, *array.shape[1:])[self.table[: self.used]] = moved

    def truncate(self, rows: int) -> None:
        """Free the pages beyond the first `rows` rows."""
        needed = min(-(-rows // self.pool.page_rows), self.used)
        self.pool.give_back(self.table[needed : self.used])
        self.table[needed : self.used] = -1
        self.used = needed

    def retain(self, rows: int) -> NDArray[np.int32]:
        """The pages of the first `rows` rows; none is written until the caller frees them."""
        pages = self.table[: -(-rows // self.pool.page_rows)].copy()
        self.pool.share(pages)
        return pages

    def become(self, pages: NDArray[np.int32]) -> None:
        """Use exactly these pages, which others use too."""
        self.pool.share(pages)
        self.truncate(0)
        self.used = len(pages)
        self.table[: self.used] = pages

    def _own(self, index: int, rows: int) -> None:
        shared = self.table[index : index + 1]
        page = self.pool.take()
        self.pool.copy(int(shared[0]), page, rows)
        self.pool.give_back(shared)
        self.table[index] = page


@dataclass(frozen=True)
class Paged(StoredCache):
    """Pages are allocated as the prompt grows, and freed again. Read by the CPU's attention."""

    name: ClassVar[str] = "paged"
    title: ClassVar[str] = "on pages"
    shared_values: ClassVar[bool] = True
    mixed_rows: ClassVar[bool] = True
    several_at_once: ClassVar[bool] = True
    shares_memory: ClassVar[bool] = True
    lends_rows: ClassVar[bool] = True

    page: int = option(
        16,
        "Tokens of one page, a power of two.",
        label="Tokens of a page",
        least=16,
        numeric=False,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.page & (self.page - 1) or self.page > MOST_PAGE_ROWS:
            raise ConfigError(
                f"page must be a power of two up to {MOST_PAGE_ROWS}, but is {self.page}",
                field="page",
            )

    def new_store(
        self, model: ModelSpec, capacity: int, device: Device, providers: Sequence[AttentionProvider]
    ) -> KVStore:
        """Raises ConfigError on a GPU, whose kernels read contiguous rows."""
        return self.new_pool(model, capacity, 0, device, providers)

    def new_pool(
        self,
        model: ModelSpec,
        capacity: int,
        spare_bytes: int,
        device: Device,
        providers: Sequence[AttentionProvider],
    ) -> KVStore:
        if device.name != "cpu":
            raise ConfigError(
                "`cache=paged` works on the CPU only: use `cache=contiguous`, or `device=cpu`",
                field="cache",
            )
        spare = -(-spare_bytes // (self.page * self.token_bytes(model)))
        pool = (-(-capacity // self.page) + spare) * self.page
        layers: list[StoredRows] = []
        for format, spec in zip(self.row_formats(model), model.each_layer, strict=True):
            layers.append(format.new(pool, device) if spec.source is None else layers[spec.source])
        return PagedStore(model, layers, capacity, self.page, device, providers)

    def store_bytes(self, model: ModelSpec, context: int) -> int:
        pages = -(-context // self.page)
        rows = pages * self.page * self.token_bytes(model)
        return rows + Fresh.size(model, context) + 2 * pages * np.dtype(np.int32).itemsize


class PagedStore(KVStore):
    """layers[layer]: its rows of every page, or those of the layer whose rows it reads. One table serves all
    layers.
    """

    in_blocks: ClassVar[bool] = True

    def __init__(
        self,
        model: ModelSpec,
        layers: list[StoredRows],
        capacity: int,
        page_rows: int,
        device: Device,
        providers: Sequence[AttentionProvider],
    ) -> None:
        self.layers = layers
        self.sources = [spec.source for spec in model.each_layer]
        stored = [rows for rows, source in zip(layers, self.sources, strict=True) if source is None]
        arrays = [array for rows in stored for array in rows.view(0).tensors.values()]
        self.pool = PagePool(len(arrays[0]) // page_rows, page_rows, arrays)
        self._capacity = capacity
        step, fresh = Fresh(model, 1, device).layers, Fresh(model, capacity, device).layers
        self._layer_arguments = [
            (rows, own_step, own_fresh, device, provider)
            for rows, own_step, own_fresh, provider in zip(layers, step, fresh, providers, strict=True)
        ]
        self._begin()
        self._shared_bytes = sum(rows.nbytes for rows in stored) + Fresh.size(model, capacity)
        self._shared_bytes += self.pool.counts.nbytes

    def _begin(self) -> None:
        """A sequence without pages."""
        self.pages = PageTable(self.pool, self._capacity)
        self._moved: list[NDArray[Any]] = []
        self._open: list[_Layer | LentRows] = []
        for source, arguments in zip(self.sources, self._layer_arguments, strict=True):
            layer = _Layer(*arguments) if source is None else LentRows(self._open[source])
            if isinstance(layer, _Layer):
                layer.pages = self.pages
            self._open.append(layer)

    def beside(self) -> PagedStore:
        """The dense graphs' write buffer is shared too: one layer of one sequence is open at a time."""
        copied = copy(self)
        copied._begin()
        copied._shared_bytes = 0  # counted once
        return copied

    def open(self, layer: int) -> _Layer | LentRows:
        return self._open[layer]

    def before_step(self, past: int, rows: int = 1) -> None:
        self.pages.reach(past, past + rows)

    def truncate(self, rows: int) -> None:
        self._moved = [array[: -(-rows // self.pool.page_rows)] for array in self._moved] if rows else []
        self.pages.truncate(rows)

    def missing_blocks(self, past: int, rows: int, waiting: bool = False) -> int:
        moved = len(self._moved[0]) if self._moved else 0
        return max(self.pages.missing(past, past + rows, waiting), moved)

    def free_blocks(self) -> int:
        return len(self.pool.free)

    def move_out(self) -> None:
        self._moved = self.pages.move_out()

    def move_in(self) -> None:
        if self._moved:
            self.pages.move_in(self._moved)
            self._moved = []

    @property
    def moved(self) -> bool:
        return bool(self._moved)

    def fixed_rows(self) -> list[KV]:
        return [rows.view(0, self.pages.table, self.pool.page_rows) for rows in self.layers]

    def report(self) -> dict[str, Any]:
        counts = self.pool.counts
        return {
            "page_bytes": self.pool.page_bytes,
            "pages": len(counts),
            "pages_in_use": int((counts > 0).sum()),
            "pages_shared": int((counts > 1).sum()),
        }

    def retain(self, rows: int) -> RetainedRows:
        return _RetainedPages(self, rows)

    @property
    def nbytes(self) -> int:
        return self._shared_bytes + self.pages.table.nbytes


class _RetainedPages(RetainedRows):
    def __init__(self, store: PagedStore, rows: int) -> None:
        self._store, self._rows = store, rows
        self._pages = store.pages.retain(rows)

    @property
    def blocks(self) -> dict[int, int]:
        return dict.fromkeys(self._pages.tolist(), self._store.pool.page_bytes)

    def stored_rows(self, layer: int) -> dict[str, Tensor]:
        if self._store.sources[layer] is not None:
            return {}
        pool = self._store.pool
        return self._store.layers[layer].view(self._rows, self._pages, pool.page_rows).stored_rows(self._rows)

    def go_on(self, store: KVStore) -> None:
        assert isinstance(store, PagedStore)
        assert store.pool is self._store.pool
        store.pages.become(self._pages)

    def release(self) -> None:
        self._store.pool.give_back(self._pages)
        self._pages = self._pages[:0]


class _Layer(LayerRows):
    """Dense graphs write into a buffer beside the pool; `commit` moves rows to their `pages`."""

    pages: PageTable

    def commit(self, rows: Rows) -> None:
        if rows.at is None:  # a step has its pages before it begins
            self.pages.reach(rows.start, rows.stop)
        super().commit(rows)

    def restore(self, arrays: dict[str, NDArray[Any]], first: int) -> None:
        stop = first + len(arrays["k"])
        self.pages.reach(0, stop)
        view = self.view(stop)
        at = view.places(np.arange(first, stop))
        for name, tensor in view.tensors.items():
            tensor[at] = arrays[name]

    def view(self, length: int | Tensor) -> KV:
        return self._rows.view(length, self.pages.table, self.pages.pool.page_rows)
