"""What a cache is given and what it must do. It owns the layout of keys and values, and nothing else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from numpy.typing import NDArray

from h2o_runtime.components.options import check_options
from h2o_runtime.devices import Device, Tensor
from h2o_runtime.kv import KV
from h2o_runtime.model import ModelSpec

if TYPE_CHECKING:
    from h2o_runtime.attention.base import AttentionProvider


@dataclass(frozen=True)
class Rows:
    """Rows start … stop - 1 of the cache, which one call writes.

    at  int64 [1] on the device, of a decode step: the row itself, where a recording reads it. `start` and `stop`
        say nothing then if the step is recorded
    """

    start: int
    stop: int
    at: Tensor | None = None


class LayerStore(Protocol):
    """One layer's keys and values while it is open.

    in_turns  whether a prompt's rows are attended to `KVStore.at_once` at a time
    """

    in_turns: bool = False

    restores: bool = False  # whether saved rows always come back by `restore`

    def target(self, rows: Rows) -> dict[str, Tensor]:
        """Where the dense graph writes the rows: its outputs by their names, "k" and "v" [rows, Hkv, d]; no "v"
        where values are a part of keys.

        The same place for the same rows while the layer is open, and whole: rows that were written one after
        the other can be read as one array. For the row of a decode step always the same place.
        """

    def commit(self, rows: Rows) -> None:
        """The rows are written: bring them into the cache's own layout."""

    def uncommitted(self, rows: Rows) -> dict[str, Tensor] | None:
        """A step's row where the dense graph wrote it, if whoever attends may bring it into the cache, which then
        is not asked to `commit` it. None: only the cache itself can."""
        return None

    def stored_rows(self, first: int, length: int) -> dict[str, Tensor]:
        """Rows first … length - 1 of as many as `length` as they are stored, by their names in `KV.tensors`."""
        return {name: rows[first:] for name, rows in self.view(length).stored_rows(length).items()}

    def restore(self, arrays: dict[str, NDArray[Any]], first: int) -> None:
        """The rows from `first` on become these, which are named and stored as in `KV.tensors`.

        Only asked where `restores`, or of a cache that stores rows otherwise than they are computed.
        """
        raise AssertionError("asked of a cache that stores rows as they are computed")

    def view(self, length: int | Tensor) -> KV:
        """The first `length` rows as kernels read them."""

    def fetch(self, pages: Tensor, page_rows: int) -> None:
        """A step is about to read these pages of the rows before its own, where `KVStore.read_in_pages` named the
        layer. int32, of `page_rows` rows each; -1 is none."""
        return

    def attended(self, q: Tensor) -> None:
        """Attention to a prompt's new rows is done; q [n, Hq, d] are their queries."""
        return


class RetainedRows(Protocol):
    """Rows of a sequence that waits where they lie, while its store goes on with another. Nobody writes them."""

    @property
    def blocks(self) -> dict[int, int]:
        """Bytes of every block of memory that they are in, by its number; sequences can share blocks."""
        ...

    def stored_rows(self, layer: int) -> dict[str, Tensor]:
        """Copies of a layer's rows as they are stored, by their names in `KV.tensors`."""
        ...

    def go_on(self, store: KVStore) -> None:
        """They become the rows of a store's sequence, and stay what they are for the one that waits.

        It is the store that they were retained by, or one `beside` it.
        """

    def release(self) -> None:
        """It waits no more."""


class KVStore(Protocol):
    """Every layer's keys and values of one session.

    recordable  whether a step's calls are always the same, so that a GPU can record them
    at_once     most rows of a prompt that it takes before attention to them; None: all
    """

    recordable: ClassVar[bool] = True
    at_once: int | None = None

    def open(self, layer: int) -> AbstractContextManager[LayerStore]:
        """A layer to write and read. Layers are opened in turn, one at a time."""

    def read_in_pages(self, layers: frozenset[int]) -> None:
        """Of these layers a step reads nothing of the rows before its own but what it asks for with
        `LayerStore.fetch`."""
        return

    def before_step(self, past: int, rows: int = 1) -> None:
        """A step is about to write `rows` rows of every layer, `past` the first. Never recorded. More than one only
        where there are `fixed_rows`."""
        return

    @property
    def earliest(self) -> int:
        """The earliest row that a prompt can go on at: layers with a window may not have what others see."""
        return 0

    def truncate(self, rows: int) -> None:
        """Rows from `rows` on are needed no more: of no layer, and before others are written in their place."""
        return

    def retain(self, rows: int) -> RetainedRows | None:
        """The first `rows` rows, which stay while another sequence takes its turn. None: they would have to be
        copied elsewhere."""
        return None

    def beside(self) -> KVStore | None:
        """A store of one more sequence in the same memory, which must have been made large enough. None: each
        sequence has memory of its own."""
        return None

    def fixed_rows(self) -> Sequence[KV] | None:
        """Every layer's rows on the device, if all of these tensors always lie where they are, the table of pages
        among them, and all that a step has to do after `before_step` is to append its own rows. None: `open`
        tells more."""
        return None

    def report(self) -> dict[str, Any]:
        """What it did, in numbers for reports."""
        return {}

    @property
    def nbytes(self) -> int:
        """Bytes that are reserved on the device."""
        ...


@dataclass(frozen=True)
class Cache(ABC):
    """Fields are the configuration, each an `option`.

    name   as flags and reports write it
    title  as people read it
    shared_values  whether it can hold rows whose values are a part of their keys
    mixed_rows     whether layers may differ in what it keeps of a token
    keeps_distances  whether two of its rows are as far apart as their tokens
    """

    name: ClassVar[str]
    title: ClassVar[str]
    shared_values: ClassVar[bool] = False
    mixed_rows: ClassVar[bool] = False
    keeps_distances: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def most_rows(self) -> int | None:
        """Beyond so many tokens it forgets some. None: never."""
        return None

    @abstractmethod
    def new_store(
        self, model: ModelSpec, capacity: int, device: Device, providers: Sequence[AttentionProvider]
    ) -> KVStore:
        """For `capacity` rows. `providers` are those that will read it, one a layer."""

    def new_pool(
        self,
        model: ModelSpec,
        capacity: int,
        spare_bytes: int,
        device: Device,
        providers: Sequence[AttentionProvider],
    ) -> KVStore:
        """As `new_store`, with `spare_bytes` more for rows of other sequences, where it can hold them.

        Those are of sequences that wait, and of stores `beside` it.
        """
        return self.new_store(model, capacity, device, providers)

    @classmethod
    def variants(cls, model: ModelSpec) -> Iterator[Cache]:
        """Itself under settings that take differently much memory, as h2o-export lists them."""
        yield cls()

    def stored_dtype(self, model: ModelSpec) -> str:
        """What a row's numbers are kept as, which a saved session must have too."""
        return model.dtype

    @abstractmethod
    def store_bytes(self, model: ModelSpec, context: int) -> int:
        """What the store takes on the device for `context` tokens."""
