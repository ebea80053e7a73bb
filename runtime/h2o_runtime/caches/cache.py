"""The interface of a cache. It owns where keys and values lie, in which format, and which rows may leave."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from numpy.typing import NDArray

from h2o_runtime.caches.reuse import Provenance
from h2o_runtime.components.options import NamedConfiguration
from h2o_runtime.devices import Device, Tensor
from h2o_runtime.kv import KV
from h2o_runtime.model_spec import ModelSpec

if TYPE_CHECKING:
    from h2o_runtime.attention.provider import AttentionProvider

Present = TypeVar("Present", bound="PresentLayer")


@dataclass(frozen=True)
class Rows:
    """Rows start … stop - 1 of the cache, which one call writes.

    at  int64 [1] on the device, of a decode step: the row itself, where a recording reads it. In a recorded
        step, `start` and `stop` are meaningless.
    """

    start: int
    stop: int
    at: Tensor | None = None


class LayerStore(Protocol):
    """One layer's keys and values while it is open.

    in_turns  whether a prompt's rows are attended to `KVStore.at_once` at a time
    """

    in_turns: bool = False

    restores: bool = False  # whether `restore` is how saved rows always come back

    def target(self, rows: Rows) -> dict[str, Tensor]:
        """Where the dense graph writes the rows: its outputs by name, "k" and "v" [rows, Hkv, d]; no "v" if
        values are stored in keys.

        While the layer is open, the same rows have the same place, and it is contiguous: rows written one
        after the other can be read as one array. The row of a decode step always has the same place.
        """

    def fresh(self, rows: Rows) -> dict[str, Tensor]:
        """A prompt's new rows as they were computed, by this layer or by the one whose rows it reads."""
        return self.target(rows)

    def given(self) -> dict[str, Tensor]:
        """What the dense graph reads of the rows before, by its inputs' names, always in the same memory."""
        return {}

    def commit(self, rows: Rows) -> None:
        """The rows are written: move them into the cache's own layout."""

    def uncommitted(self, rows: Rows) -> dict[str, Tensor] | None:
        """A step's row where the dense graph wrote it, if the caller may move it into the cache itself
        instead of calling `commit`. None: only the cache can move it.
        """
        return None

    def stored_rows(self, first: int, length: int) -> dict[str, Tensor]:
        """Rows first … length - 1 as they are stored, by their names in `KV.tensors`."""
        return {name: rows[first:] for name, rows in self.view(length).stored_rows(length).items()}

    def stored_kinds(self, first: int, length: int) -> dict[str, tuple[tuple[int, ...], Any]]:
        """Shapes and dtypes of `stored_rows`."""
        tensors = self.view(length).tensors.items()
        return {name: ((length - first, *tensor.shape[1:]), tensor.dtype) for name, tensor in tensors}

    def restore(self, arrays: dict[str, NDArray[Any]], first: int) -> None:
        """Replace the rows from `first` on by these, named and stored as in `KV.tensors`.

        Called only if `restores` is set, or for a cache that stores rows in another format than the model
        computes.
        """
        raise AssertionError("asked of a cache that stores rows as they are computed")

    def view(self, length: int | Tensor) -> KV:
        """The first `length` rows as kernels read them."""

    def fetch(self, pages: Tensor, page_rows: int) -> None:
        """A step is about to read these pages of the earlier rows; called if `KVStore.read_in_pages` named
        the layer.

        int32, of `page_rows` rows each; -1 is none.
        """
        return

    def attended(self, q: Tensor) -> None:
        """Attention to a prompt's new rows is done; q [n, Hq, d] are their queries."""
        return


class PresentLayer(LayerStore):
    """A layer whose rows are always there: opening and closing it does nothing."""

    def __enter__(self: Present) -> Present:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class RetainedRows(Protocol):
    """Rows of a waiting sequence, in place, while its store continues with another. Nobody writes them."""

    @property
    def blocks(self) -> dict[int, int]:
        """Bytes of every memory block that holds them, by block number; sequences can share blocks."""
        ...

    def stored_rows(self, layer: int) -> dict[str, Tensor]:
        """Copies of a layer's rows as they are stored, by their names in `KV.tensors`."""
        ...

    def go_on(self, store: KVStore) -> None:
        """Make them the rows of a store's sequence; for the waiting sequence they do not change.

        The store must be the one that retained them, or one `beside` it.
        """

    def release(self) -> None:
        """The sequence no longer waits."""


class KVStore(Protocol):
    """Every layer's keys and values of one session.

    recordable  whether a step's calls are always the same, so that a GPU can record them
    in_blocks   whether rows lie in blocks that stores `beside` it and sequences that wait take from the same memory
    at_once     most rows of a prompt that it takes before attention to them; None: all
    step_rows   most rows of one step of its session; None: any number
    """

    recordable: ClassVar[bool] = True
    in_blocks: ClassVar[bool] = False
    at_once: int | None = None
    step_rows: int | None = None

    def open(self, layer: int) -> AbstractContextManager[LayerStore]:
        """A layer to write and read. Layers are opened one at a time."""

    def read_in_pages(self, layers: frozenset[int]) -> None:
        """In these layers, a step reads only those earlier rows that it requests with `LayerStore.fetch`."""
        return

    def before_prompt(self, past: int, length: int, lasting: int) -> None:
        """Rows past … length - 1 of every layer are about to be written, by a prompt or a piece of one. Rows before
        `lasting` are what another prompt would compute alike."""
        return

    def before_step(self, past: int, rows: int = 1) -> None:
        """A step is about to write `rows` rows of every layer; `past` is the first. Never recorded.

        More than one row only if `fixed_rows` gives a result.
        """
        return

    @property
    def earliest(self) -> int:
        """The earliest row from which a prompt can continue: layers with a window may have dropped earlier
        rows.
        """
        return 0

    def bounded(self, origin: Provenance) -> Provenance:
        """`origin`, with what is known of the rows that a prompt can go on at."""
        return origin.from_row(self.earliest)

    def truncate(self, rows: int) -> None:
        """Rows from `rows` on are no longer needed in any layer; called before others are written in their
        place.
        """
        return

    def restored(self, rows: int) -> None:
        """All layers have been given `rows` rows by `LayerStore.restore`, or otherwise than by a pass."""
        return

    def retain(self, rows: int) -> RetainedRows | None:
        """Keep the first `rows` rows in place while another sequence takes its turn. None: they would have to
        be copied elsewhere.
        """
        return None

    def beside(self) -> KVStore | None:
        """A store for one more sequence in the same memory, which must be large enough. None: each sequence
        needs memory of its own.
        """
        return None

    def missing_blocks(self, past: int, rows: int, waiting: bool = False) -> int:
        """Blocks of memory that it still needs to write rows past … past + rows - 1, moved rows among them.

        waiting: whether its present rows are retained before that, so that none of their blocks is written.
        """
        return 0

    def free_blocks(self) -> int:
        """How many nobody has."""
        return 0

    def move_out(self) -> None:
        """Give its blocks to others for a while: rows wait in memory of their own. Only where there are blocks."""
        raise AssertionError("asked of a store that has its own memory")

    def move_in(self) -> None:
        """Rows that were moved out come back, for which there must be blocks."""
        return

    @property
    def moved(self) -> bool:
        """Whether its rows are elsewhere."""
        return False

    def fixed_rows(self) -> Sequence[KV] | None:
        """Every layer's rows on the device, if these tensors, including the page table, never move, and if a
        step after `before_step` only appends its own rows. None: use `open`.
        """
        return None

    def report(self) -> dict[str, Any]:
        """What the store did, in numbers for reports."""
        return {}

    @property
    def nbytes(self) -> int:
        """Bytes reserved on the device."""
        ...


@dataclass(frozen=True)
class Cache(NamedConfiguration, ABC):
    """Fields are the configuration, each an `option`.

    shared_values  whether it can hold rows whose values are a part of their keys
    mixed_rows     whether layers may differ in what it keeps of a token
    several_at_once  whether many sessions have rows in it unless only one is asked for
    shares_memory  whether several sessions take what they need from one memory: `KVStore.beside`
    lends_rows     whether layers can read the rows of earlier ones: `LentRows`
    keeps_distances  whether two of its rows are as far apart as their tokens
    """

    shared_values: ClassVar[bool] = False
    mixed_rows: ClassVar[bool] = False
    several_at_once: ClassVar[bool] = False
    shares_memory: ClassVar[bool] = False
    lends_rows: ClassVar[bool] = False
    keeps_distances: ClassVar[bool] = True

    @property
    def most_rows(self) -> int | None:
        """The number of tokens beyond which it drops some. None: never."""
        return None

    @abstractmethod
    def new_store(
        self, model: ModelSpec, capacity: int, device: Device, providers: Sequence[AttentionProvider]
    ) -> KVStore:
        """For `capacity` rows. `providers` are the readers, one per layer."""

    def new_pool(
        self,
        model: ModelSpec,
        capacity: int,
        spare_bytes: int,
        device: Device,
        providers: Sequence[AttentionProvider],
    ) -> KVStore:
        """As `new_store`, with `spare_bytes` more for rows of other sequences, if the cache can hold them.

        These are waiting sequences, and the sequences of stores `beside` it.
        """
        return self.new_store(model, capacity, device, providers)

    @classmethod
    def variants(cls, model: ModelSpec) -> Iterator[Cache]:
        """Variants of itself with different memory needs, which h2o-export lists."""
        yield cls()

    def stored_dtype(self, model: ModelSpec) -> str:
        """The format of stored numbers; a saved session must have the same."""
        return model.dtype

    @abstractmethod
    def store_bytes(self, model: ModelSpec, context: int) -> int:
        """Bytes of the store on the device for `context` tokens."""


class LentRows(PresentLayer):
    """A layer without keys of its own, which reads the rows of an earlier layer (Gemma 4; Brandon et al., 2024):
    `source` has all rows of a prompt, and a step's row, when this layer is opened."""

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
